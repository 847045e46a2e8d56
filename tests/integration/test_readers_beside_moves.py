"""Readers and writers that are older than a received range: they see each document once, and no move waits."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.integration.sharded import SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

LOW = range(100)
"""Keys on the lower shard; the upper half of them moves."""
HIGH = range(SPLIT_AT, SPLIT_AT + 100)
EVERYTHING = [*LOW, *HIGH]
MIDDLE = 50
QUERY_PLAN_KILLED = 175
MOVE_SECONDS_MAX = 60.0
"""Far less than the ten minutes after which an idle cursor is closed."""
SLOW = {"$where": "sleep(20) || true"}


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
        more = {"getMore": cursor["id"], "collection": collection.name, "batchSize": 3}
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


def test_an_older_cursor_without_shard_keys_is_closed_rather_than_wrong(client: Client, filled: Documents) -> None:
    commands: list[dict[str, Any]] = [
        {"find": {}, "projection": {"other": 1, "_id": 0}},
        {"find": {}, "limit": 190},
        {"aggregate": [{"$project": {"other": 1}}]},
    ]
    cursors = [_open(filled, command) for command in commands]
    move_in(client, filled)
    for cursor in cursors:
        with pytest.raises(OperationFailure) as caught:
            list(rest_of(filled, cursor))
        assert caught.value.code == QUERY_PLAN_KILLED


def _open(collection: Documents, command: dict[str, Any]) -> dict[str, Any]:
    """Open a cursor on both shards with a small first batch."""
    if "find" in command:
        rest = {"filter": command["find"], "batchSize": 3}
        rest |= {name: value for name, value in command.items() if name != "find"}
        opened = collection.database.command({"find": collection.name, **rest})
    else:
        rest = {"pipeline": command["aggregate"], "cursor": {"batchSize": 3}}
        opened = collection.database.command({"aggregate": collection.name, **rest})
    cursor: dict[str, Any] = opened["cursor"]
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
            return any("$where" in str(each["command"]) for each in operations)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(is_running, what="the operation is under way")
        yield result
    finally:
        thread.join(60)


@pytest.mark.parametrize("command", ["count", "find"])
def test_a_read_without_a_reply_is_run_again(
    cluster: RunningCluster, client: Client, filled: Documents, command: str
) -> None:
    reads: dict[str, Callable[[Documents], Any]] = {
        "count": lambda each: each.database.command("count", each.name, query=SLOW)["n"],
        "find": lambda each: len(list(each.find(SLOW, {"other": 1}))),
    }
    with under_way(cluster, filled, reads[command]) as result:
        assert move_in(client, filled) < MOVE_SECONDS_MAX
    assert result == [len(EVERYTHING)]


def test_a_long_update_changes_each_document_once(cluster: RunningCluster, client: Client, filled: Documents) -> None:
    with under_way(cluster, filled, lambda each: each.update_many(SLOW, {"$inc": {"n": 1}}).modified_count) as count:
        move_in(client, filled)
    assert count == [len(EVERYTHING)]
    assert filled.count_documents({"n": 1}) == len(EVERYTHING)
