"""``$merge`` into a sharded collection while a router or shard dies: the writes are right, and can be completed."""

import threading
from contextlib import suppress

import pytest
from pymongo.errors import PyMongoError

from tests.integration.sharded import Document, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

COUNT = 60

SLOWLY: Document = {"body": "function(key) { sleep(50); return key; }", "args": ["$key"], "lang": "js"}
STAGES: list[Document] = [{"$project": {"_id": "$key", "key": "$key", "new": {"$function": SLOWLY}}}]
MERGED: list[Document] = [{"_id": n * 10, "key": n * 10, "new": n * 10} for n in range(COUNT)]


def is_running(mongod: Client, namespace: str) -> bool:
    """Whether a mongod runs an aggregation of a collection."""
    match = {"$match": {"ns": namespace, "active": True, "command.aggregate": {"$exists": True}}}
    return bool(list(mongod.admin.aggregate([{"$currentOp": {}}, match])))


@pytest.mark.parametrize("victim", ["router.1", "shard1.0.mongod"])
def test_what_was_merged_is_right_and_the_rest_can_be_merged(
    cluster: RunningCluster, lower_mongod: Client, placed: Documents, victim: str
) -> None:
    database = placed.database
    target = shard_by_range(database, "target")
    placed.insert_many({"key": document["key"]} for document in MERGED)
    merge: Document = {"into": target.name, "on": ["_id", "key"], "whenMatched": "replace"}
    target.create_index([("_id", 1), ("key", 1)], unique=True)
    pipeline = [*STAGES, {"$merge": merge}]

    def write() -> None:
        with cluster.direct("router.1") as writing, suppress(PyMongoError):
            writing[database.name][placed.name].aggregate(pipeline)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(lambda: is_running(lower_mongod, placed.full_name), what="the shard computes")
        cluster.kill(victim)
        writer.join(120)
    finally:
        cluster.restart(victim)

    def found() -> tuple[Document, ...] | None:
        with suppress(PyMongoError):
            return tuple(target.find(sort=[("key", 1)]))
        return None

    eventually(lambda: found() is not None, what="the target can be read")
    assert [document for document in found() or () if document not in MERGED] == []

    def merges() -> bool:
        with suppress(PyMongoError):
            placed.aggregate(pipeline)
            return True
        return False

    eventually(merges, what="the rest is merged")
    assert found() == tuple(MERGED)
