"""A prepared transaction on a shard of three members, while its primary changes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tests.integration.raw_client import raw_client
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.routed_transaction import RoutedTransaction
from tests.shardd.two_phase_commit.test_commit_failovers import primary_of, unfreeze

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11, "b": 1}
CHANGED = {**DOCUMENT, "b": 2}
INSERT = {"insert": "c", "documents": [DOCUMENT]}
UPDATE = {"update": "c", "updates": [{"q": {"_id": 1, "a": 11}, "u": {"$set": {"b": 2}}}]}
MEMBERS = 3


class Collection:
    """A sharded collection, on each member of its shard; the first member must be primary at its creation."""

    def __init__(self, cluster: MiniCluster, name: str) -> None:
        self.cluster = cluster
        self.sharded = ShardedNamespace(cluster, f"{name}.c", {"a": 1}, "sh0")
        self._members = cluster.shards["sh0"].members

    def insert(self, member: int) -> None:
        """Insert the document, on all members."""
        concern = {"writeConcern": {"w": MEMBERS}}
        assert self._run({**INSERT, **concern}, member)["n"] == 1

    def read(self, member: int, **more: object) -> list[dict[str, Any]] | int:
        """The documents on a member, or the code of the error."""
        reply = self._run({"find": "c", "$readPreference": {"mode": "nearest"}, **more}, member)
        return list(reply["cursor"]["firstBatch"]) if reply["ok"] else int(reply["code"])

    def has(self, member: int, expected: list[dict[str, Any]]) -> bool:
        """Whether these are the documents on a member."""
        return self.read(member) == expected

    def _run(self, command: dict[str, Any], member: int) -> dict[str, Any]:
        with raw_client(self._members[member].address) as client:
            return client.command({**command, "shardVersion": self.sharded.version()}, db=self.sharded.db)


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Collection]]:
    """Two collections of a cluster whose first shard has three members."""
    with mini_cluster(tmp_path_factory.mktemp("electing"), members=[MEMBERS, 1]) as cluster:
        yield {is_committed: Collection(cluster, f"elections_{is_committed}") for is_committed in (True, False)}


def depose(cluster: MiniCluster, former: int) -> int:
    """Have the primary step down; returns the index of the next one."""
    with cluster.shards["sh0"].members[former].mongod_client() as mongod:
        mongod.admin.command({"replSetStepDown": 60, "force": True})
    present = primary_of(cluster, other_than=former)
    unfreeze(cluster, former)
    return present


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_prepared_transaction_survives_elections(collections: dict[bool, Collection], is_committed: bool) -> None:
    collection = collections[is_committed]
    electing = collection.cluster
    primary = primary_of(electing)
    collection.insert(primary)
    transaction = RoutedTransaction(collection.sharded, member=primary)
    assert transaction.run(UPDATE)["nModified"] == 1
    time = transaction.prepare()
    for _ in range(MEMBERS):
        primary = depose(electing, primary)
        transaction.go_on_at(primary)
        assert transaction.abort()["code"] == 267
        assert_undecided(collection, time)
        assert transaction.prepare() == time
    decision = {"commitTransaction": 1, "commitTimestamp": time} if is_committed else {"abortTransaction": 1}
    assert transaction.decide(decision) == {"ok": 1.0}
    transaction.close()
    expected = [CHANGED if is_committed else DOCUMENT]
    for member in range(MEMBERS):
        # The decision reaches secondaries by replication.
        eventually(partial(collection.has, member, expected), what="the decision is everywhere")


def assert_undecided(collection: Collection, time: Timestamp) -> None:
    """Check on all members that reads of the present find the former document, and others wait for the decision."""
    later = {"readConcern": {"level": "local", "afterClusterTime": time}, "maxTimeMS": 500}
    for member in range(MEMBERS):
        # A secondary may have to refresh its placement, for which it needs to know the new primary.
        eventually(partial(collection.has, member, [DOCUMENT]), what="the document is found")
        assert collection.read(member, **later) == 50
