"""Readers and writers that are older than a received range: they see each document once, and no move waits."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo.cursor import CursorType
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import (
    LOWER,
    SPLIT_AT,
    UPPER,
    Document,
    Documents,
    chunks,
    shard_by_hash,
    shard_by_range,
)
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

LOW = range(100)
"""Keys on the lower shard; the upper half of them moves."""
HIGH = range(SPLIT_AT, SPLIT_AT + 100)
EVERYTHING = [*LOW, *HIGH]
MIDDLE = 50
MOVE_SECONDS_MAX = 60.0
"""Far less than the ten minutes after which an idle cursor is closed."""
LONG = 1 << 18
"""Bytes of a document; sockets have room for some of them."""
SLOW = {"$where": "sleep(20) || true"}
SLOW_EXPRESSION: Document = {"$function": {"body": "function() { sleep(20); return true; }", "args": [], "lang": "js"}}
COUNTED: list[Document] = [{"$match": {"$expr": SLOW_EXPRESSION}}, {"$group": {"_id": None, "n": {"$sum": 1}}}]


@pytest.fixture
def filled(placed: Documents) -> Documents:
    """A collection with documents on both shards."""
    placed.insert_many({"_id": n, "key": n, "n": 0, "other": n} for n in EVERYTHING)
    return placed


def move_in(client: Client, collection: Documents) -> float:
    """Move half of the lower documents to the upper shard; returns how many seconds it took."""
    namespace = collection.full_name
    client.admin.command("split", namespace, middle={"key": MIDDLE})
    began = time.monotonic()
    client.admin.command("moveChunk", namespace, find={"key": MIDDLE}, to=UPPER)
    return time.monotonic() - began


def rest_of(collection: Documents, cursor: dict[str, Any]) -> Iterator[Document]:
    """The remaining documents of a cursor, in small batches."""
    while cursor["id"]:
        more = {"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2], "batchSize": 3}
        cursor = collection.database.command(more)["cursor"]
        yield from cursor["nextBatch"]


@pytest.mark.parametrize(
    "command",
    [
        {"find": {}},
        {"find": {}, "sort": {"key": 1}},
        {"find": {}, "sort": {"other": -1}},
        {"find": {}, "projection": {"key": 1}},
        {"find": {}, "projection": {"_id": 0, "other": 0}},
        {"find": {"key": {"$gte": SPLIT_AT}}, "projection": {"key": 1, "_id": 0}},
        {"find": {"n": 0}, "skip": 0},
        {"aggregate": [{"$match": {"n": 0}}]},
    ],
    ids=str,
)
def test_an_older_cursor_returns_each_document_once(client: Client, filled: Documents, command: dict[str, Any]) -> None:
    opened = _open(filled, command)
    assert move_in(client, filled) < MOVE_SECONDS_MAX
    documents = [*opened["firstBatch"], *rest_of(filled, opened)]
    expected = list(HIGH) if command.get("find", {}).get("key") else EVERYTHING
    assert sorted(document["key"] for document in documents) == expected
    assert filled.count_documents({}) == len(EVERYTHING)


NOTHING_JOINED: Document = {"$lookup": {"from": "nothing", "localField": "n", "foreignField": "n", "as": "joined"}}
SHAPES: dict[str, Document] = {
    "whole": {"find": {}},
    "id": {"find": {}, "projection": {"_id": 1}},
    "name": {"find": {}, "projection": {"name": 1}},
    "without key": {"find": {}, "projection": {"key": 0}},
    "computed": {"find": {}, "projection": {"key": "$name", "n": {"$add": ["$n", 1]}}},
    "slice": {"find": {}, "projection": {"list": {"$slice": 1}}},
    "positional": {"find": {"list": 1}, "projection": {"list.$": 1}},
    "neither": {"find": {}, "projection": {"_id": 0, "other": 1}},
    "neither, sorted": {"find": {}, "projection": {"_id": 0, "other": 1}, "sort": {"other": 1}},
    "return key": {"find": {}, "returnKey": True, "hint": {"_id": 1}},
    "record id": {"find": {}, "showRecordId": True},
    "limit": {"find": {}, "limit": 1000},
    "large limit": {"find": {}, "limit": 100_000},
    "sort and limit": {"find": {}, "sort": {"other": 1}, "limit": 1000, "projection": {"other": 1}},
    "skip": {"find": {}, "skip": 0, "sort": {"other": 1}, "limit": 1000},
    "collation": {"find": {"name": "X"}, "collation": {"locale": "en", "strength": 2}, "projection": {"other": 1}},
    "text": {"find": {"$text": {"$search": "x"}}, "projection": {"other": 1}},
    "majority": {"find": {}, "readConcern": {"level": "majority"}, "projection": {"other": 1}},
    "empty pipeline": {"aggregate": []},
    "$project": {"aggregate": [{"$project": {"key": 1, "other": 1}}]},
    "$project, neither": {"aggregate": [{"$project": {"_id": 0, "other": 1}}]},
    "$addFields": {"aggregate": [{"$addFields": {"key": 1}}]},
    "$unset": {"aggregate": [{"$unset": "key"}]},
    "$unwind": {"aggregate": [{"$unwind": "$single"}]},
    "$sort": {"aggregate": [{"$sort": {"other": -1}}]},
    "$limit": {"aggregate": [{"$match": {"n": 0}}, {"$limit": 1000}]},
    "$sort and $limit": {"aggregate": [{"$sort": {"other": 1}}, {"$limit": 1000}, {"$project": {"other": 1}}]},
    "$replaceRoot": {"aggregate": [{"$replaceRoot": {"newRoot": {"other": "$other"}}}]},
    "$group": {"aggregate": [{"$group": {"_id": "$_id", "other": {"$first": "$other"}}}]},
    "$setWindowFields": {
        "aggregate": [
            {"$setWindowFields": {"partitionBy": "$_id", "sortBy": {"other": 1}, "output": {"m": {"$max": "$other"}}}}
        ]
    },
    "$lookup": {
        "aggregate": [
            {"$lookup": {"from": "nothing", "localField": "key", "foreignField": "key", "as": "joined"}},
            {"$project": {"other": 1}},
        ]
    },
    "view": {"view": {}},
    "view, sorted": {"view": {}, "sort": {"other": 1}},
}


@pytest.mark.parametrize("sharding", ["range", "hashed"])
def test_no_cursor_ends_because_ranges_arrive(client: Client, database: Database[Document], sharding: str) -> None:
    """Whatever the shape: each document is returned once, after two chunks have arrived where the cursor is open."""
    collection = _moving(client, database, sharding)
    database.create_collection("view", viewOn=collection.name, pipeline=[{"$project": {"other": 1, "name": 1}}])
    opened = {shape: _open(collection, command) for shape, command in SHAPES.items()}
    deferred = {shape: _open(collection, command, batch_size=0) for shape, command in SHAPES.items()}
    for number in range(2):
        client.admin.command("moveChunk", collection.full_name, **_chunk_below(client, collection), to=UPPER)
        if not number:
            for cursors in (opened, deferred):
                for shape, cursor in cursors.items():
                    cursors[shape] = _advanced(collection, cursor)
    found = {shape: [*cursor["firstBatch"], *rest_of(collection, cursor)] for shape, cursor in opened.items()}
    later = {shape: [*cursor["firstBatch"], *rest_of(collection, cursor)] for shape, cursor in deferred.items()}
    counts = {shape: len(documents) for shape, documents in found.items()}
    assert counts == {shape: len(EVERYTHING) for shape in SHAPES}
    assert {shape: len(documents) for shape, documents in later.items()} == counts
    for documents in (*found.values(), *later.values()):
        shown = [document.get("other", document.get("key")) for document in documents]
        if None not in shown and all(isinstance(each, int) for each in shown):
            assert sorted(shown) == EVERYTHING


def _moving(client: Client, database: Database[Document], sharding: str) -> Documents:
    """A collection with a document for each of `EVERYTHING`, with several chunks on the lower shard."""
    if sharding == "range":
        collection = shard_by_range(database)
        for middle in (25, 50, 75):
            client.admin.command("split", collection.full_name, middle={"key": middle})
    else:
        collection = shard_by_hash(database, key="key")
    documents: list[Document] = [
        {"_id": n, "key": n, "n": 0, "other": n, "name": "x", "list": [1, 2], "single": [n]} for n in EVERYTHING
    ]
    collection.insert_many(documents)
    collection.create_index([("name", "text")])
    return collection


def _chunk_below(client: Client, collection: Documents) -> Document:
    """The bounds of a chunk of the lower shard."""
    found = [chunk for chunk in chunks(client, collection.full_name) if chunk["shard"] == LOWER]
    return {"bounds": [found[-1]["min"], found[-1]["max"]]}


def _advanced(collection: Documents, cursor: Document) -> Document:
    """The cursor after one more batch, with all documents so far as its first batch."""
    more = {"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2], "batchSize": 3}
    later = collection.database.command(more)["cursor"]
    return {**later, "firstBatch": [*cursor["firstBatch"], *later["nextBatch"]]}


def _open(collection: Documents, command: Document, batch_size: int = 3) -> Document:
    """Open a cursor on both shards with a small first batch."""
    rest = {name: value for name, value in command.items() if name not in ("aggregate", "find", "view")}
    if "aggregate" in command:
        rest |= {"pipeline": command["aggregate"], "cursor": {"batchSize": batch_size}}
        opened = collection.database.command({"aggregate": collection.name, **rest})
    else:
        name = "view" if "view" in command else collection.name
        rest |= {"filter": command.get("find", {}), "batchSize": batch_size}
        opened = collection.database.command({"find": name, **rest})
    cursor: Document = opened["cursor"]
    return cursor


@contextmanager
def under_way(cluster: RunningCluster, collection: Documents, work: Callable[[Documents], Any]) -> Iterator[list[Any]]:
    """Run a client's operation during the block; its result is in the yielded list after the block."""
    result: list[Any] = []

    def run() -> None:
        with cluster.client() as client:
            result.append(work(client[collection.database.name][collection.name]))

    def is_running() -> bool:
        with cluster.direct("shard1.0.mongod") as mongod:
            operations = mongod.admin.aggregate([{"$currentOp": {}}, {"$match": {"ns": collection.full_name}}])
            return any("sleep(" in str(each) for each in operations)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(is_running, what="the operation is under way")
        yield result
    finally:
        thread.join(60)


@pytest.mark.parametrize("command", ["count", "find", "aggregate", "merged aggregate"])
def test_a_read_without_a_reply_is_run_again(
    cluster: RunningCluster, client: Client, filled: Documents, command: str
) -> None:
    reads: dict[str, Callable[[Documents], Any]] = {
        "count": lambda each: each.database.command("count", each.name, query=SLOW)["n"],
        "find": lambda each: len(list(each.find(SLOW, {"other": 1}))),
        "aggregate": lambda each: next(each.aggregate(COUNTED))["n"],
        # A mongod merges it, which reads cursors that have not begun.
        "merged aggregate": lambda each: next(each.aggregate([*COUNTED, NOTHING_JOINED]))["n"],
    }
    with under_way(cluster, filled, reads[command]) as result:
        assert move_in(client, filled) < MOVE_SECONDS_MAX
    assert result == [len(EVERYTHING)]


def test_a_long_update_changes_each_document_once(cluster: RunningCluster, client: Client, filled: Documents) -> None:
    with under_way(cluster, filled, lambda each: each.update_many(SLOW, {"$inc": {"n": 1}}).modified_count) as count:
        move_in(client, filled)
    assert count == [len(EVERYTHING)]
    assert filled.count_documents({"n": 1}) == len(EVERYTHING)


CHANGES: dict[str, Callable[[Documents], object]] = {
    "drop": lambda each: each.drop(),
    "dropDatabase": lambda each: each.database.client.drop_database(each.database.name),
    "renameCollection": lambda each: each.rename("renamed"),
    "replaced": lambda each: each.database.create_collection("other").rename(each.name, dropTarget=True),
    "reshardCollection": lambda each: each.database.client.admin.command(
        "reshardCollection", each.full_name, key={"key": 1, "other": 1}, numInitialChunks=1
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_idle_cursor_on_a_former_collection_holds_no_range_back(
    client: Client, filled: Documents, change: str
) -> None:
    """mongod keeps the cursor, and shows no more of its collection than the name."""
    namespace = filled.full_name
    opened = _open(filled, {"find": {}})
    CHANGES[change](filled)
    if change != "reshardCollection":
        shard_by_range(filled.database)
        filled.insert_many({"_id": n, "key": n} for n in EVERYTHING)
    for chunk in chunks(client, namespace):
        elsewhere = UPPER if chunk["shard"] == LOWER else LOWER
        bounds = [chunk["min"], chunk["max"]]
        waiting = {"_waitForDelete": True, "maxTimeMS": 1000 * int(MOVE_SECONDS_MAX)}
        client.admin.command({"moveChunk": namespace, "bounds": bounds, "to": elsewhere, **waiting})
    with pytest.raises(OperationFailure) as refused:
        list(rest_of(filled, opened))
    assert refused.value.code == ErrorCode.QueryPlanKilled


def test_an_exhaust_stream_shows_no_range_that_arrives(
    cluster: RunningCluster, client: Client, placed: Documents
) -> None:
    """Clients of routers have none, but clients of shards do. This one is behind when the range arrives."""
    placed.insert_many({"_id": n, "key": n, "text": "x" * LONG} for n in EVERYTHING)
    with (
        cluster.direct("shard1.0.shardd") as shard,
        shard[placed.database.name][placed.name].find(batch_size=2, cursor_type=CursorType.EXHAUST) as stream,
    ):
        found = [next(stream)["key"] for _ in range(3)]
        assert stream._exhaust
        move_in(client, placed)
        found += [document["key"] for document in stream]
    assert sorted(found) == list(HIGH)
