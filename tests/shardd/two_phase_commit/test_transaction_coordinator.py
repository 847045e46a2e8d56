"""A coordinator between participants and a mongod that fail as the test wants, on a clock that jumps."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.daemon.fail_points import FailPoints
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.two_phase_commit.commit_state import Abort, Commit, CommitState, Step, TransactionId
from shardwright.shardd.two_phase_commit.transaction_coordinator import TransactionCoordinator
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectionClosedError

Answers = Callable[[Mapping[str, Any], int], Any]

LIFETIME_SECONDS: Final = 60.0
IDENTITY: Final = TransactionId.from_document(
    {"lsid": {"id": Binary(bytes(16), UUID_SUBTYPE), "uid": NO_USER}, "txnNumber": 3}
)


class World:
    """The rest of the cluster for a coordinator: its context, its mongod and its participants."""

    def __init__(self, **answers: Answers) -> None:
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        self.failing_writes = 0
        self._answers = answers
        self.fail_points = FailPoints(FAIL_POINT_NAMES)
        self.options = self.config_times = self.mongod = self
        self.slow_ms = 100
        self.shard_name = "sh0"

    @property
    def context(self) -> ShardContext:
        return cast("ShardContext", self)

    def require_identity(self) -> "World":
        return self

    def gossip(self) -> dict[str, Any]:
        return {}

    def observe_reply(self, reply: Mapping[str, Any]) -> None:
        pass

    async def wait_durable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if self.failing_writes:
            self.failing_writes -= 1
            raise CommandError(ErrorCode.WriteConcernFailed, "waiting for replication timed out")
        self.log.append(("mongod", command))
        return {}

    async def shard_client(self, shard_id: str, *, may_be_cached: bool = False) -> "Participant":
        await trio.lowlevel.checkpoint()
        return Participant(shard_id, self._answers[shard_id], self.log)

    def sent(self, name: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The commands of a name that participants got, with the participant."""
        return [(shard, command) for shard, command in self.log if name in command]

    def documents(self) -> list[Mapping[str, Any]]:
        """The documents in the order in which they were written."""
        return [command["updates"][0]["u"] for shard, command in self.log if "update" in command]


class Participant:
    """A participant's primary."""

    def __init__(self, shard: str, answer: Answers, log: list[tuple[str, Mapping[str, Any]]]) -> None:
        self._shard = shard
        self._answer = answer
        self._log = log

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self._log.append((self._shard, command))
        count = sum(shard == self._shard and next(iter(each)) == next(iter(command)) for shard, each in self._log)
        answer = self._answer(command, count)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


def prepares_at(seconds: int) -> Answers:
    """Return the answers of a participant that always prepares."""
    return lambda command, _: {"prepareTimestamp": Timestamp(seconds, 1)} if "prepareTransaction" in command else {}


def run(world: World, state: CommitState | None = None) -> TransactionCoordinator:
    """Run a coordinator of two participants to its end."""
    made: list[TransactionCoordinator] = []

    async def main() -> None:
        deadline = trio.current_time() + LIFETIME_SECONDS
        commit = state or CommitState(["sh0", "sh1"])
        made.append(TransactionCoordinator(world.context, IDENTITY, commit, deadline, is_recovered=False))
        await made[0].run()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert made[0].ended.is_set()
    assert made[0].state.step is Step.ENDED
    return made[0]


def test_everything_is_durable_before_it_is_sent() -> None:
    world = World(sh0=prepares_at(5), sh1=prepares_at(7))
    run(world)
    names = [(to, next(iter(command))) for to, command in world.log]
    assert [names[0], sorted(names[1:3]), names[3], names[4], sorted(names[5:7]), names[7]] == [
        ("mongod", "update"),
        [("sh0", "prepareTransaction"), ("sh1", "prepareTransaction")],
        ("mongod", "update"),
        ("sh0", "commitTransaction"),
        [("sh0", "commitTransaction"), ("sh1", "commitTransaction")],
        ("mongod", "delete"),
    ]
    concerns = [command["writeConcern"].get("w") for to, command in world.log]
    assert concerns == [*["majority"] * 4, 1, *["majority"] * 2, 1]
    assert all(command["$coordinator"] == "sh0" for to, command in world.log if to != "mongod")
    decision = {"decision": "commit", "commitTimestamp": Timestamp(7, 1)}
    assert [document.get("decision") for document in world.documents()] == [None, decision]
    assert {command["commitTimestamp"] for _, command in world.sent("commitTransaction")} == {Timestamp(7, 1)}


def test_the_others_commit_even_if_the_coordinators_own_shard_does_not_answer() -> None:
    def is_silent_at_first(command: Mapping[str, Any], count: int) -> Any:  # noqa: ANN401 - as `Answers`
        return None if "commitTransaction" in command and count == 1 else prepares_at(5)(command, count)

    world = World(sh0=is_silent_at_first, sh1=prepares_at(7))
    run(world)
    assert sorted(shard for shard, _ in world.sent("commitTransaction")) == ["sh0", "sh0", "sh1"]


def test_the_decision_is_written_after_its_timestamp() -> None:
    world = World(sh0=prepares_at(5), sh1=prepares_at(7))
    run(world)
    times = [command.get("$clusterTime", {}).get("clusterTime") for to, command in world.log if "update" in command]
    assert times == [None, Timestamp(7, 1)]


def test_a_participant_that_does_not_vote_in_time_aborts_the_transaction() -> None:
    def is_silent(command: Mapping[str, Any], count: int) -> Any:  # noqa: ANN401 - as `Answers`
        return None if "prepareTransaction" in command else {}

    world = World(sh0=prepares_at(5), sh1=is_silent)
    assert run(world).state.decision == Abort(ErrorCode.NoSuchTransaction, "Transaction exceeded deadline")
    assert sorted(shard for shard, _ in world.sent("abortTransaction")) == ["sh0", "sh1"]


def test_votes_and_decisions_are_asked_for_and_sent_until_they_are_answered() -> None:
    failures = [
        ConnectionClosedError("sh1", "closed", sent=True),
        CommandError(ErrorCode.NotWritablePrimary, "not primary"),
        CommandError(ErrorCode.NoSuchTransaction, "unconfirmed", extra={"writeConcernError": {"code": 64}}),
        CommandError(ErrorCode.FailedToSatisfyReadPreference, "no primary"),
    ]

    def is_flaky(command: Mapping[str, Any], count: int) -> Any:  # noqa: ANN401 - as `Answers`
        return failures[count - 1] if count <= len(failures) else prepares_at(4)(command, count)

    world = World(sh0=prepares_at(5), sh1=is_flaky)
    assert run(world).state.decision == Commit(Timestamp(5, 1))
    assert [shard for shard, _ in world.sent("prepareTransaction")].count("sh1") == len(failures) + 1
    assert [shard for shard, _ in world.sent("commitTransaction")].count("sh1") == len(failures) + 1


def test_a_write_that_may_have_been_executed_is_repeated() -> None:
    world = World(sh0=prepares_at(5), sh1=prepares_at(7))
    world.failing_writes = 3
    assert isinstance(run(world).state.decision, Commit)


def test_a_recovered_decision_is_sent_without_another_vote() -> None:
    document = {"participants": ["sh0", "sh1"], "decision": Commit(Timestamp(9, 1)).to_document()}
    world = World(sh0=prepares_at(5), sh1=prepares_at(7))
    run(world, CommitState.recovered(document))
    assert world.sent("prepareTransaction") == []
    assert [command["commitTimestamp"] for _, command in world.sent("commitTransaction")] == [Timestamp(9, 1)] * 3


def test_a_vote_to_abort_does_not_wait_for_the_others() -> None:
    gone = CommandError(ErrorCode.NoSuchTransaction, "gone")
    world = World(
        sh0=lambda command, _: None if "prepareTransaction" in command else {},
        sh1=lambda command, _: gone,
    )
    assert run(world).state.decision == Abort(251, "from shard sh1 :: caused by :: gone")
    assert len(world.sent("abortTransaction")) == 2
