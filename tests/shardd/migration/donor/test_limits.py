"""The limits of a donor's patience, and how its migration ends then."""

import pytest
import trio
from pymongo.errors import OperationFailure

from shardwright.shardd.migration.donor.donor_state import RecipientLostError, RecipientStatus
from shardwright.shardd.migration.donor.migration import ATTEMPTS_MAX, COMMIT_SECONDS_MAX
from shardwright.wire.error_codes import ErrorCode
from tests.shardd.migration.donor.lone_donor import LoneDonor, Recipient
from tests.shardd.migration.donor.moving import LOW, TOP, Move, changes, daemon, migrations_left, stopped_move
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


class ForgetfulRecipient(Recipient):
    """A recipient that has lost the attempt that it started."""

    async def status(self, session_id: str) -> RecipientStatus:
        raise RecipientLostError("the recipient was restarted")


class SlowRecipient(Recipient):
    """A recipient whose commit does not return while writes wait for it.

    Attributes:
        commits: number of received commit commands.
        is_committing: set at the first of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.is_committing = trio.Event()

    async def commit(self, session_id: str) -> RecipientStatus:
        self.commits += 1
        self.is_committing.set()
        await trio.sleep_forever()
        raise AssertionError("unreachable")


def test_a_recipient_that_is_lost_each_time() -> None:
    donor = LoneDonor(ForgetfulRecipient())
    donor.run()
    assert donor.outcome.error is not None
    assert donor.outcome.error.code == ErrorCode.OperationFailed
    assert donor.recipient.starts == ATTEMPTS_MAX
    assert len(donor.mongod.written["migrationAttempts"]["attempts"]) == ATTEMPTS_MAX
    assert not donor.mongod.written["migrationAttempts"]["enteredCriticalSection"]


def test_a_recipient_that_does_not_finish_in_the_critical_section() -> None:
    """Writes wait until the limit, but no longer; the recipient is not asked to commit twice."""
    recipient = SlowRecipient()
    donor = LoneDonor(recipient)
    blocked_seconds = 0.0

    async def write() -> None:
        nonlocal blocked_seconds
        await recipient.is_committing.wait()
        section = donor.state.critical_section
        assert section is not None
        assert section.blocks(is_write=True)
        assert not section.blocks(is_write=False)
        began = trio.current_time()
        await section.wait_released()
        blocked_seconds = trio.current_time() - began

    donor.run(beside=write)
    assert donor.outcome.error is not None
    assert donor.outcome.error.code == ErrorCode.ExceededTimeLimit
    assert recipient.commits == 1
    assert donor.state.critical_section is None
    assert blocked_seconds == pytest.approx(COMMIT_SECONDS_MAX, abs=1)
    assert donor.seconds == pytest.approx(COMMIT_SECONDS_MAX, abs=1)


def test_a_recipient_that_is_killed_each_time(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """The migration is given up and leaves nothing behind; the next one succeeds."""
    recipient, admin = mini.shards["sh1"].members[0], daemon(mini).admin
    ranged.insert(*({"_id": n, "a": n} for n in range(10, 110)))
    with stopped_move(ranged, "moveChunkHangAtStep3") as move:
        for number in range(1, ATTEMPTS_MAX + 1):
            [shown] = admin.command("currentOp", desc="MoveChunk")["inprog"]
            assert shown["migration"]["attempt"] == number
            recipient.restart(recipient.daemon)
            entered = admin.command("configureFailPoint", "moveChunkHangAtStep3", mode="off")["count"]
            admin.command("configureFailPoint", "moveChunkHangAtStep3", mode="alwaysOn")
            if number < ATTEMPTS_MAX:
                admin.command("waitForFailPoint", "moveChunkHangAtStep3", timesEntered=entered + 1, maxTimeMS=60_000)
        with pytest.raises(OperationFailure) as failure:
            move.wait()
    assert failure.value.code == ErrorCode.OperationFailed
    assert ranged.chunks()[-1]["shard"] == "sh0"
    ranged.insert({"_id": 1000, "a": 1000})
    assert len(ranged.documents()) == 101
    assert migrations_left(mini) == []
    assert changes(ranged, "moveChunk.from")[-1]["note"] == "aborted"
    Move(ranged, LOW, TOP, "sh1").wait()
    assert len(ranged.documents("sh1")) == 101
    for shard in ("sh0", "sh1"):
        config = daemon(mini, shard).config
        assert list(config.migrationAttempts.find()) == list(config.migrationCheckpoints.find()) == []
