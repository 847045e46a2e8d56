"""Snapshot reads outside of transactions include writes prepared before their time, in every batch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp

from shardwright.sharding.versions import UNSHARDED
from tests.integration.raw_client import raw_client
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.conftest import Begin
from tests.shardd.transactions.routed_transaction import RoutedTransaction

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 11, "b": 1}
UPDATED: dict[str, Any] = {**DOCUMENT, "b": 2}
UPDATE = {"update": "c", "updates": [{"q": {"_id": 1, "a": 11}, "u": {"$set": {"b": 2}}}]}
FIND = {"find": "c", "batchSize": 0}
AGGREGATE = {"aggregate": "c", "pipeline": [], "cursor": {"batchSize": 0}}


def prepared(ranged: ShardedNamespace, transaction: RoutedTransaction) -> Timestamp:
    """Prepare a transaction that has updated the document; returns the time."""
    ranged.insert(DOCUMENT)
    assert transaction.run(UPDATE)["nModified"] == 1
    return transaction.prepare()


def is_secondary(member: Member) -> bool:
    with member.client() as client:
        return bool(client.admin.command("hello")["secondary"])


def check_waits(transaction: RoutedTransaction, address: str, reading: dict[str, Any], time: Timestamp) -> None:
    """A read at the time at which a transaction is prepared waits until it is committed, and includes it."""
    command = {
        **reading,
        "readConcern": {"level": "snapshot", "atClusterTime": time},
        "shardVersion": reading.get("shardVersion", transaction.sharded.version()),
        "$readPreference": {"mode": "secondaryPreferred"},
    }
    db = transaction.sharded.db
    with raw_client(address) as client, ThreadPoolExecutor(1) as executor:
        assert client.command({**command, "maxTimeMS": 500}, db=db)["code"] == 50
        answer = executor.submit(client.command, command, db=db)
        assert transaction.decide({"commitTransaction": 1, "commitTimestamp": time}) == {"ok": 1.0}
        cursor = answer.result()["cursor"]
        more = {"getMore": cursor["id"], "collection": next(iter(reading.values()))}
        batch = client.command(more, db=db)["cursor"]["nextBatch"]
    assert batch == [UPDATED]


@pytest.mark.parametrize("reading", [FIND, AGGREGATE])
def test_a_snapshot_waits_for_what_was_prepared_before_its_time(
    ranged: ShardedNamespace, begin: Begin, reading: dict[str, Any]
) -> None:
    transaction = begin()
    time = prepared(ranged, transaction)
    check_waits(transaction, transaction.address, reading, time)


def test_a_snapshot_of_a_view_waits_too(ranged: ShardedNamespace, begin: Begin) -> None:
    versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": ranged.database_version}
    ranged.run({"create": "view", "viewOn": "u", "databaseVersion": ranged.database_version})
    ranged.run({"insert": "u", "documents": [DOCUMENT], **versions})
    transaction = begin()
    assert transaction.run({**UPDATE, "update": "u", **versions})["nModified"] == 1
    time = transaction.prepare()
    check_waits(transaction, transaction.address, {"find": "view", "batchSize": 0, **versions}, time)


@pytest.mark.parametrize("level", ["available", "local", "majority"])
def test_other_reads_see_what_was_before(ranged: ShardedNamespace, begin: Begin, level: str) -> None:
    transaction = begin()
    prepared(ranged, transaction)
    reply = ranged.versioned({"find": "c", "readConcern": {"level": level}, "maxTimeMS": 60_000})
    assert reply["cursor"]["firstBatch"] == [DOCUMENT]
    assert transaction.decide({"abortTransaction": 1}) == {"ok": 1.0}


def test_a_snapshot_waits_on_a_secondary_too(tmp_path: Path) -> None:
    with mini_cluster(tmp_path, shards=1, members=2) as cluster:
        members = cluster.shards["sh0"].members
        members.sort(key=is_secondary)
        ranged = ShardedNamespace(cluster, "d.c", {"a": 1}, "sh0")
        client = cluster.kept_client(members[1])
        reading = {"find": "c", "shardVersion": ranged.version(), "$readPreference": {"mode": "secondary"}}
        eventually(lambda: client.d.command(reading, check=False)["ok"], what="the secondary has found its primary")
        transaction = RoutedTransaction(ranged)
        time = prepared(ranged, transaction)
        check_waits(transaction, members[1].address, FIND, time)
        transaction.close()
