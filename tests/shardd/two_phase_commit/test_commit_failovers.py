"""The coordinator's shard elects another primary during a commit, and the former one may not even notice."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import pytest
from bson.errors import InvalidBSON
from pymongo.errors import PyMongoError

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.pauses import paused
from tests.shardd.mini_cluster import MiniCluster, mini_cluster
from tests.shardd.two_phase_commit.hand_made_transaction import (
    HandMadeTransaction,
    create_collections,
    documents,
    prepared_transactions,
    transaction,
)

PLACES: Final = (
    "hangBeforeWaitingForParticipantListWriteConcern",
    "hangBeforeSendingPrepare",
    "hangBeforeWritingDecision",
    "hangBeforeSendingCommit",
    "hangBeforeDeletingCoordinatorDoc",
)
SECONDS_MAX: Final = 90.0


@pytest.fixture(scope="module")
def electing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose first shard has three members."""
    with mini_cluster(tmp_path_factory.mktemp("electing"), members=[3, 1]) as cluster:
        create_collections(cluster, "failovers")
        yield cluster


def primary_of(cluster: MiniCluster, *, other_than: int | None = None) -> int:
    """Return the index of the first shard's primary."""

    def find() -> list[int]:
        found = []
        for index, member in enumerate(cluster.shards["sh0"].members):
            if index == other_than:
                continue
            with member.client(serverSelectionTimeoutMS=500) as client:
                try:
                    found += [index] if client.admin.command("hello").get("isWritablePrimary") else []
                except PyMongoError:
                    continue
        return found

    return eventually(find, within=SECONDS_MAX, what="a primary")[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("place", PLACES)
def test_another_primary_completes_the_commit(electing: MiniCluster, place: str, is_paused: bool) -> None:
    former = primary_of(electing)
    member = electing.shards["sh0"].members[former]
    with transaction(electing, "failovers") as txn, member.client() as client:
        txn.insert("sh0", member=former)
        txn.insert("sh1")
        with fail_point(client, place) as point, txn.committing(member=former):
            point.wait_entered()
            with pausing(electing, former, is_paused=is_paused):
                with member.mongod_client() as mongod:
                    mongod.admin.command({"replSetStepDown": 60, "force": True})
                present = primary_of(electing, other_than=former)
                outcome = decided(txn, present)
                assert_settled(electing, txn, present, is_committed=outcome is None)
        # The former primary, which goes on now, changes nothing.
        assert_settled(electing, txn, present, is_committed=outcome is None)
        unfreeze(electing, former)


@contextmanager
def pausing(cluster: MiniCluster, index: int, *, is_paused: bool) -> Iterator[None]:
    """Pause the daemon of a member during the block, if it is to be paused."""
    running = cluster.shards["sh0"].members[index].daemon.running
    assert running is not None
    with paused(running.pid) if is_paused else nullcontext():
        yield


def unfreeze(cluster: MiniCluster, index: int) -> None:
    """Allow a member that has stepped down to be elected again."""
    with cluster.shards["sh0"].members[index].mongod_client() as mongod:
        mongod.admin.command({"replSetFreeze": 0})


def decided(txn: HandMadeTransaction, member: int) -> int | None:
    """Return the decision that the new primary reports to a router: None for a commit, or the code of the abort."""

    def ask() -> dict[str, Any]:
        try:
            reply = txn.send("sh0", txn.commit_command(), member=member)
        except (OSError, InvalidBSON):
            return {}
        return reply if reply["ok"] or reply["code"] == 251 else {}

    reply = eventually(ask, within=SECONDS_MAX, what="the commit is decided")
    return None if reply["ok"] else int(reply["code"])


def assert_settled(cluster: MiniCluster, txn: HandMadeTransaction, primary: int, *, is_committed: bool) -> None:
    """Check that both shards have the outcome, and that neither document nor prepared transaction is left."""
    for shard, index in (("sh0", primary), ("sh1", 0)):
        with cluster.shards[shard].members[index].mongod_client() as mongod:
            eventually(lambda: not prepared_transactions(mongod), within=SECONDS_MAX, what="it ends")
            eventually(lambda: not documents(mongod), within=SECONDS_MAX, what="the document goes")
        assert txn.is_visible(shard, index) == is_committed, shard
