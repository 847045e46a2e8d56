"""Snapshots (``readConcern: snapshot``) during moves: each document once, as of one time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_collection
from tests.local_cluster import Client, RunningCluster
from tests.migration.moving import moving

DOCUMENTS = 100
MOVED = 30
STALE_CHUNK_HISTORY = 250


@pytest.fixture
def filled(database: Database[Document]) -> Documents:
    """A collection with two chunks on the lower shard; the keys from `DOCUMENTS` - `MOVED` on may move."""
    shard_collection(database, "filled", {"key": 1})
    database.client.admin.command("split", f"{database.name}.filled", middle={"key": DOCUMENTS - MOVED})
    database.filled.insert_many({"_id": n, "key": n} for n in range(DOCUMENTS))
    return database.filled


def move(client: Client, collection: Documents, to: str, *, waits_for_delete: bool = True) -> None:
    """Move the upper chunk and delete its orphans."""
    bounds = [{"key": DOCUMENTS - MOVED}, {"key": MaxKey()}]
    client.admin.command("moveChunk", collection.full_name, bounds=bounds, to=to, _waitForDelete=waits_for_delete)


def present(client: Client) -> Timestamp:
    """The current cluster time."""
    time: Timestamp = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    return time


def concern(time: Timestamp | None) -> dict[str, Any]:
    """The read concern of a snapshot."""
    return {"level": "snapshot"} if time is None else {"level": "snapshot", "atClusterTime": time}


def found(collection: Documents, time: Timestamp | None = None, **query: object) -> list[int]:
    """The keys in a snapshot, read in many batches."""
    db = collection.database
    find = {"find": collection.name, "filter": query, "readConcern": concern(time), "batchSize": 7}
    cursor = db.command(find)["cursor"]
    keys = [document["key"] for document in cursor["firstBatch"]]
    while cursor["id"]:
        cursor = db.command({"getMore": cursor["id"], "collection": collection.name, "batchSize": 7})["cursor"]
        keys += [document["key"] for document in cursor["nextBatch"]]
    return sorted(keys)


def counted(collection: Documents, time: Timestamp | None = None) -> int:
    """The number of documents in a snapshot, counted by an aggregation."""
    pipeline = [{"$count": "n"}]
    aggregate = {"aggregate": collection.name, "pipeline": pipeline, "cursor": {}, "readConcern": concern(time)}
    [result] = collection.database.command(aggregate)["cursor"]["firstBatch"]
    return int(result["n"])


def test_a_snapshot_from_before_a_move(client: Client, filled: Documents, other_client: Client) -> None:
    times = [present(client)]
    for to in (UPPER, LOWER, UPPER):
        move(client, filled, to)
        filled.insert_one({"key": DOCUMENTS + len(times)})
        times.append(present(client))
    for reader in (client, other_client):
        collection = reader[filled.database.name][filled.name]
        for moves, time in enumerate(times):
            expected = [*range(DOCUMENTS), *range(DOCUMENTS + 1, DOCUMENTS + 1 + moves)]
            assert found(collection, time) == expected
            assert counted(collection, time) == len(expected)
            assert found(collection, time, key=DOCUMENTS - 1) == [DOCUMENTS - 1]
            assert found(collection, time, key=DOCUMENTS + 1) == ([DOCUMENTS + 1] if moves else [])


def test_every_new_snapshot_contains_each_document_once(
    client: Client, filled: Documents, other_client: Client
) -> None:
    second = other_client[filled.database.name][filled.name]
    assert second.count_documents({}) == DOCUMENTS  # it has seen them, and the placement of now
    for to in (UPPER, LOWER, UPPER):
        move(client, filled, to)
        assert found(second) == found(filled) == list(range(DOCUMENTS))
        assert counted(second) == counted(filled) == DOCUMENTS
        assert found(second, key=DOCUMENTS - 1) == [DOCUMENTS - 1]


@contextmanager
def half_moved(cluster: RunningCluster, collection: Documents) -> Iterator[None]:
    """In the block the range is on both shards; afterwards the move is completed."""
    command = {"min": {"key": DOCUMENTS - MOVED}, "max": {"key": MaxKey()}, "toShard": UPPER, "waitForDelete": True}
    with (
        cluster.direct("shard0.0.shardd") as donor,
        fail_point(donor, "moveChunkHangAtStep4") as point,
        moving(cluster.address("router.0"), {"moveRange": collection.full_name, **command}) as running,
    ):
        point.wait_entered()
        yield
        point.turn_off()
        running.wait()


def test_a_snapshot_does_not_see_documents_that_were_orphans_then(
    cluster: RunningCluster, client: Client, filled: Documents
) -> None:
    with half_moved(cluster, filled):
        during = present(client)
        assert found(filled, during) == list(range(DOCUMENTS))
    assert found(filled, during) == list(range(DOCUMENTS))
    assert counted(filled, during) == DOCUMENTS


def test_a_cursor_keeps_its_snapshot_time(client: Client, filled: Documents) -> None:
    db = filled.database
    cursor = db.command({"find": filled.name, "readConcern": concern(None), "batchSize": 5})["cursor"]
    keys = [document["key"] for document in cursor["firstBatch"]]
    move(client, filled, UPPER, waits_for_delete=False)  # which waits for this cursor
    filled.insert_one({"key": DOCUMENTS})
    filled.delete_one({"key": 0})
    more = db.command({"getMore": cursor["id"], "collection": filled.name})["cursor"]
    keys += [document["key"] for document in more["nextBatch"]]
    assert sorted(keys) == list(range(DOCUMENTS))


def test_history_that_does_not_reach_back(client: Client, filled: Documents) -> None:
    before = present(client)
    move(client, filled, UPPER)
    filled.drop()
    shard_collection(filled.database, filled.name, {"key": 1})
    for query in ({}, {"key": 1}):
        with pytest.raises(OperationFailure) as caught:
            found(filled, before, **query)
        assert caught.value.code == STALE_CHUNK_HISTORY
    assert found(filled) == []


def test_a_snapshot_session_follows_a_move(client: Client, filled: Documents) -> None:
    filled.database.unsharded.insert_one({"_id": 1})
    with client.start_session(snapshot=True) as session:
        assert filled.find_one({"key": DOCUMENTS - 1}, session=session) is not None
        move(client, filled, UPPER)
        filled.delete_many({"key": {"$gt": MinKey()}})
        assert sorted(each["key"] for each in filled.find({}, session=session)) == list(range(DOCUMENTS))
    assert found(filled) == []
