"""Snapshots (``readConcern: snapshot``) during moves: each document once, as of one time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.fail_points import fail_point
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_collection
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.migration.moving import moving

DOCUMENTS = 100
MOVED = 30
INVALID_OPTIONS = 72
SNAPSHOT_TOO_OLD = 239
STALE_CHUNK_HISTORY = 250
WINDOW = "minSnapshotHistoryWindowInSeconds"


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


@pytest.fixture
def unsharded(filled: Documents) -> Documents:
    """A collection that is only on the primary shard."""
    collection = filled.database.unsharded
    collection.insert_many({"_id": n, "key": n % 3} for n in range(10))
    return collection


def test_distinct(client: Client, unsharded: Documents, other_client: Client) -> None:
    command: Document = {"distinct": unsharded.name, "key": "key", "readConcern": concern(None)}
    first = unsharded.database.command(command)
    assert first["values"] == [0, 1, 2]
    unsharded.delete_many({"key": 1})
    command["readConcern"] = concern(first["atClusterTime"])
    for reader in (client, other_client):
        again = reader[unsharded.database.name].command(command)
        assert (again["values"], again["atClusterTime"]) == ([0, 1, 2], first["atClusterTime"])
    assert unsharded.distinct("key") == [0, 2]


def test_commands_that_read_no_snapshots(filled: Documents) -> None:
    """The commands that a mongod refuses, and distinct on a sharded collection."""
    commands: list[Document] = [
        {"distinct": filled.name, "key": "key"},
        {"count": filled.name},
        {"insert": filled.name, "documents": [{"key": 1}]},
        {"update": filled.name, "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]},
        {"delete": filled.name, "deletes": [{"q": {"key": 1}, "limit": 1}]},
        {"findAndModify": filled.name, "query": {"key": 1}, "remove": True},
        {"listIndexes": filled.name},
    ]
    for command in commands:
        with pytest.raises(OperationFailure) as caught:
            filled.database.command({**command, "readConcern": concern(None)})
        assert caught.value.code == INVALID_OPTIONS, f"{command}: {caught.value}"
    assert counted(filled) == DOCUMENTS


def test_replies_tell_the_time_of_a_snapshot(filled: Documents, client: Client) -> None:
    db, name = filled.database, filled.name
    find: Document = {"find": name, "batchSize": 5, "readConcern": concern(None)}
    aggregate: Document = {"aggregate": name, "pipeline": [], "cursor": {"batchSize": 5}, "readConcern": concern(None)}
    for command in (find, aggregate):
        cursor = db.command(command)["cursor"]
        time = cursor["atClusterTime"]
        more = db.command({"getMore": cursor["id"], "collection": name, "batchSize": 5})["cursor"]
        assert more["atClusterTime"] == time
        again = db.command({**command, "readConcern": concern(time)})["cursor"]
        assert (again["atClusterTime"], again["firstBatch"]) == (time, cursor["firstBatch"])
        db.command("killCursors", name, cursors=[cursor["id"], again["id"]])
    before = present(client)
    assert before >= time


@pytest.fixture
def joined(filled: Documents) -> Documents:
    """As `filled`, with chunks on both shards, a view on it and an unsharded collection."""
    move(filled.database.client, filled, UPPER)
    filled.database.command("create", "view", viewOn=filled.name, pipeline=[{"$match": {"key": {"$gte": 0}}}])
    filled.database.unsharded.insert_many({"_id": n, "key": n} for n in range(10))
    return filled


LOOKUP: Document = {"from": "unsharded", "localField": "key", "foreignField": "key", "as": "found"}
PIPELINES: list[list[Document]] = [
    [],
    [{"$count": "n"}],
    [{"$group": {"_id": None, "n": {"$sum": 1}}}],
    [{"$group": {"_id": "$key"}}],
    [{"$sort": {"key": 1}}, {"$limit": 3}],
    [{"$match": {"key": 3}}],
    [{"$lookup": LOOKUP}],
    [{"$lookup": {**LOOKUP, "from": "filled"}}, {"$count": "n"}],
    [{"$unionWith": "unsharded"}],
    [{"$facet": {"counted": [{"$count": "n"}]}}],
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
@pytest.mark.parametrize("source", ["filled", "view", "unsharded"])
def test_each_aggregation_tells_the_time_of_its_snapshot(
    joined: Documents, source: str, pipeline: list[Document]
) -> None:
    """By that, drivers give all reads of a session one time."""
    aggregate: Document = {"aggregate": source, "pipeline": pipeline, "cursor": {}}
    cursor = joined.database.command({**aggregate, "readConcern": concern(None)})["cursor"]
    time = cursor["atClusterTime"]
    joined.database["filled" if source == "view" else source].insert_one({"key": 3})
    again = joined.database.command({**aggregate, "readConcern": concern(time)})["cursor"]
    assert again["atClusterTime"] == time

    def order(document: Document) -> str:
        return str(sorted(document.items(), key=str))

    assert sorted(again["firstBatch"], key=order) == sorted(cursor["firstBatch"], key=order)


@pytest.mark.parametrize("first", ["count", "joined count", "find"])
def test_a_snapshot_session_reads_one_snapshot_whatever_it_reads_first(joined: Documents, first: str) -> None:
    counting: Document = {"$count": "n"}
    with joined.database.client.start_session(snapshot=True) as session:

        def count(*stages: Document) -> int:
            [result] = joined.aggregate([*stages, counting], session=session)
            return int(result["n"])

        reads: dict[str, Callable[[], int]] = {
            "count": lambda: joined.count_documents({}, session=session),
            "joined count": lambda: count({"$lookup": LOOKUP}),
            "find": lambda: len(list(joined.find(session=session))),
        }
        assert reads[first]() == DOCUMENTS
        joined.insert_many([{"key": 1}, {"key": DOCUMENTS}])
        assert {name: read() for name, read in reads.items()} == dict.fromkeys(reads, DOCUMENTS)


@pytest.mark.parametrize(
    "options",
    [
        {"atClusterTime": Timestamp(0, 0)},
        {"atClusterTime": 5},
        {"unknown": 5},
        {"atClusterTime": Timestamp(1 << 20, 1), "afterClusterTime": Timestamp(1 << 20, 1), "level": "majority"},
    ],
    ids=str,
)
@pytest.mark.parametrize("begins", [False, True], ids=["outside a transaction", "in a transaction"])
def test_a_wrong_concern_is_refused_as_by_a_mongod(
    joined: Documents, cluster: RunningCluster, options: Document, *, begins: bool
) -> None:
    name = joined.database.name
    replies = []
    for server in ("router.0", "shard0.0.mongod"):
        with raw_client(cluster.address(server)) as client:
            session = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}
            transaction = {**session, "startTransaction": True} if begins else {}
            find = {"find": joined.name, "readConcern": {"level": "snapshot", **options}, **transaction}
            reply = client.command(find, db=name)
            replies.append((reply["code"], reply["codeName"], reply["errmsg"]))
    assert replies[0] == replies[1]


def test_a_view_is_not_counted_in_a_snapshot(joined: Documents) -> None:
    db = joined.database
    messages = []
    for name in ("view", "unsharded"):
        with pytest.raises(OperationFailure) as caught:
            db.command({"count": name, "readConcern": concern(None)})
        messages.append((caught.value.code, caught.value.details and caught.value.details["errmsg"]))
    assert messages[0] == messages[1]
    assert messages[0][0] == INVALID_OPTIONS


def test_snapshots_while_a_chunk_moves_to_and_fro(client: Client, filled: Documents, other_client: Client) -> None:
    collection = other_client[filled.database.name][filled.name]
    times = [present(client)]
    with ThreadPoolExecutor() as mover:
        for to in (UPPER, LOWER) * 3:
            moved = mover.submit(move, client, filled, to, waits_for_delete=False)
            while not moved.done():
                times.append(present(client))
                assert found(collection) == found(collection, times[0]) == list(range(DOCUMENTS))
                assert counted(collection) == counted(collection, times[-1]) == DOCUMENTS
            moved.result()
    for time in times[:: max(1, len(times) // 10)]:
        assert found(collection, time) == list(range(DOCUMENTS)), time


@contextmanager
def short_window(*mongods: Client) -> Iterator[None]:
    """During the block mongods forget the past at once."""
    before = [mongod.admin.command({"getParameter": 1, WINDOW: 1})[WINDOW] for mongod in mongods]
    try:
        for mongod in mongods:
            mongod.admin.command({"setParameter": 1, WINDOW: 0})
        yield
    finally:
        for mongod, seconds in zip(mongods, before, strict=True):
            mongod.admin.command({"setParameter": 1, WINDOW: seconds})


def failure_at(collection: Documents, time: Timestamp) -> int | None:
    """The code of the error of a snapshot; None if there is none."""
    try:
        found(collection, time)
    except OperationFailure as error:
        return error.code
    return None


def test_data_that_mongods_no_longer_have(
    client: Client, filled: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    move(client, filled, UPPER)
    before = present(client)
    with short_window(lower_mongod, upper_mongod):

        def is_too_old() -> bool:
            filled.update_many({}, {"$inc": {"n": 1}})
            return failure_at(filled, before) == SNAPSHOT_TOO_OLD

        eventually(is_too_old, what="the past is forgotten")
        commands: list[Document] = [{"aggregate": filled.name, "pipeline": [], "cursor": {}}, {"find": filled.name}]
        for command in commands:
            with pytest.raises(OperationFailure) as caught:
                filled.database.command({**command, "readConcern": concern(before)})
            assert (caught.value.code, (caught.value.details or {})["codeName"]) == (SNAPSHOT_TOO_OLD, "SnapshotTooOld")


def test_placement_that_config_servers_no_longer_have(
    cluster: RunningCluster, client: Client, filled: Documents, other_client: Client
) -> None:
    move(client, filled, UPPER)
    before = present(client)
    collection = other_client[filled.database.name][filled.name]
    with cluster.direct("config.0.mongod") as config, short_window(config):

        def is_forgotten() -> bool:
            """At a move, configd removes history that ended before the present second."""
            for to in (LOWER, UPPER):
                move(client, filled, to)
            assert collection.find_one({"key": DOCUMENTS - 1}) is not None  # it has seen the new placement
            return failure_at(collection, before) == STALE_CHUNK_HISTORY

        eventually(is_forgotten, what="the history begins later")
        assert counted(collection) == DOCUMENTS
