"""A fault at each step of a commit: it is decided all the same, in the same way everywhere, and nothing is left."""

import signal
from collections.abc import Iterator
from typing import Any, Final

import bson
import pytest
from bson.errors import InvalidBSON
from pymongo.errors import PyMongoError

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, MiniCluster, mini_cluster
from tests.shardd.two_phase_commit.hand_made_transaction import (
    HandMadeTransaction,
    create_collections,
    documents,
    prepared_transactions,
    transaction,
)

PLACES: Final = (
    "hangBeforeWritingParticipantList",
    "hangBeforeWaitingForParticipantListWriteConcern",
    "hangBeforeSendingPrepare",
    "hangBeforeWritingDecision",
    "hangBeforeWaitingForDecisionWriteConcern",
    "hangBeforeSendingCommit",
    "hangBeforeSendingAbort",
    "hangBeforeDeletingCoordinatorDoc",
    "hangAfterDeletingCoordinatorDoc",
)
COORDINATOR: Final = "sh0"
PARTICIPANT: Final = "sh1"

DECIDED: Final = PLACES[4:]
"""The places at which the decision is on the only member of the coordinator's set."""

DECISION_SECONDS_MAX: Final = 90.0


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose processes are killed."""
    with mini_cluster(tmp_path_factory.mktemp("killed")) as cluster:
        create_collections(cluster, "faults")
        yield cluster


@pytest.fixture
def txn(killed: MiniCluster) -> Iterator[HandMadeTransaction]:
    """A transaction that has written on both shards."""
    with transaction(killed, "faults") as made:
        made.insert(COORDINATOR, PARTICIPANT)
        yield made


def kill_daemon(member: Member) -> None:
    """Kill and restart the daemon."""
    member.restart(member.daemon)


def kill_mongod(member: Member) -> None:
    """Kill and restart the mongod."""
    member.restart(member.mongod)


def kill_both(member: Member) -> None:
    """Kill both, and restart them."""
    member.daemon.stop(signal.SIGKILL)
    member.mongod.stop(signal.SIGKILL)
    member.mongod.start()
    member.daemon.start()
    member.wait_ready()


def step_down(member: Member) -> None:
    """Have the mongod step down; it is elected again a second later."""
    with member.mongod_client() as mongod:
        mongod.admin.command({"replSetStepDown": 1, "force": True})


@pytest.mark.matrix(share=0.7)
@pytest.mark.parametrize("shard", [COORDINATOR, PARTICIPANT])
@pytest.mark.parametrize("fault", [kill_daemon, kill_mongod, kill_both, step_down], ids=lambda each: each.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_at_a_step(killed: MiniCluster, txn: HandMadeTransaction, place: str, fault: Any, shard: str) -> None:  # noqa: ANN401
    is_aborted = place == "hangBeforeSendingAbort"
    if is_aborted:
        txn.send(PARTICIPANT, {"abortTransaction": 1})
    with killed.shard_client(COORDINATOR) as client, fail_point(client, place) as point, txn.committing():
        point.wait_entered()
        fault(killed.shards[shard].members[0])
        eventually(lambda: is_serving(killed), what="both shards have a primary")
    outcome = decided(txn)
    if place in DECIDED:
        assert outcome == (251 if is_aborted else None)
    assert_settled(killed, txn, is_committed=outcome is None)


def test_without_test_commands_a_commit_on_several_shards_aborts_and_says_why(
    killed: MiniCluster, txn: HandMadeTransaction
) -> None:
    member = killed.shards[PARTICIPANT].members[0]
    original = member.mongod.arguments
    member.mongod.arguments = [each.replace("enableTestCommands=1", "enableTestCommands=0") for each in original]
    try:
        member.restart(member.mongod)
        eventually(lambda: is_serving(killed), what="both shards have a primary")
        with transaction(killed, "faults") as several, transaction(killed, "faults") as single:
            several.insert(COORDINATOR, PARTICIPANT)
            reply = several.commit()
            single.insert(PARTICIPANT)
            assert single.send(PARTICIPANT, {"commitTransaction": 1}) == {"ok": 1.0}
    finally:
        member.mongod.arguments = original
        member.restart(member.mongod)
        eventually(lambda: is_serving(killed), what="both shards have a primary")
    assert (reply["code"], reply.get("errorLabels")) == (263, None)
    assert "--setParameter enableTestCommands=1" in reply["errmsg"]
    assert_settled(killed, several, is_committed=False)
    assert single.is_visible(PARTICIPANT)


def is_serving(cluster: MiniCluster) -> bool:
    """Whether all shards have a primary whose daemon serves."""
    for each in cluster.shards.values():
        with each.members[0].client(serverSelectionTimeoutMS=500) as client:
            try:
                if not client.admin.command("hello").get("isWritablePrimary"):
                    return False
            except PyMongoError:
                return False
    return True


def decided(txn: HandMadeTransaction) -> int | None:
    """Repeat the router's request until there is a decision: None for a commit, or the code of the abort."""

    def ask() -> dict[str, Any]:
        try:
            reply: dict[str, Any] = txn.commit()
        except (OSError, InvalidBSON, bson.errors.BSONError):
            return {}  # the connection was refused or closed
        return reply if reply["ok"] or reply["code"] == 251 else {}

    reply = eventually(ask, within=DECISION_SECONDS_MAX, what="the commit is decided")
    return None if reply["ok"] else int(reply["code"])


def assert_settled(cluster: MiniCluster, txn: HandMadeTransaction, *, is_committed: bool) -> None:
    """Check that both shards have the outcome, and that neither document nor prepared transaction is left."""
    for shard in (COORDINATOR, PARTICIPANT):
        with cluster.shards[shard].members[0].mongod_client() as mongod:
            eventually(lambda: not prepared_transactions(mongod), within=DECISION_SECONDS_MAX, what="it ends")
            eventually(lambda: not documents(mongod), within=DECISION_SECONDS_MAX, what="the document goes")
        assert txn.is_visible(shard) == is_committed, shard
