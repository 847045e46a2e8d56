"""A shard that is slow, paused or dead; clients that disconnect."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pymongo
import pytest
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure, PyMongoError

from tests.integration.health import http_get, sample
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

# Takes half a minute on 50 documents, and can be interrupted after each.
SLOW = {"$where": "sleep(600) || true"}
SLEEP = {"body": "function() { sleep(600); return true; }", "args": [], "lang": "js"}
SLOW_IN_PIPELINE = {"$expr": {"$function": SLEEP}}

LIMIT_MS = 12_000
"""After this time a client takes a router for broken; a shard that hangs is found to be dead later."""


@pytest.fixture
def filled(ranged: Documents) -> Documents:
    """Documents on both shards."""
    ranged.insert_many({"_id": n, "key": n * 10} for n in range(100))
    return ranged


@contextmanager
def stopped(cluster: RunningCluster, name: str) -> Iterator[None]:
    """A process that is paused during the block."""
    cluster.kill(name, "STOP")
    try:
        yield
    finally:
        cluster.kill(name, "CONT")


@contextmanager
def dead(cluster: RunningCluster, *names: str) -> Iterator[None]:
    """Processes that are killed, and restarted after the block."""
    try:
        for name in names:
            cluster.kill(name)
        yield
    finally:
        for name in names:
            cluster.restart(name)


def works(action: Callable[[], object]) -> Callable[[], bool]:
    """Whether an action succeeds, for `eventually`."""

    def attempt() -> bool:
        try:
            action()
        except PyMongoError:
            return False
        return True

    return attempt


def operations_on(mongod: Client, namespace: str) -> list[Document]:
    """The operations of a mongod on a collection."""
    return list(mongod.admin.aggregate([{"$currentOp": {}}, {"$match": {"ns": namespace, "active": True}}]))


@pytest.mark.parametrize("process", ["shard1.0.mongod", "shard1.0.shardd"])
def test_time_limit_on_a_shard_that_hangs(cluster: RunningCluster, filled: Documents, process: str) -> None:
    with stopped(cluster, process):
        with pytest.raises(ExecutionTimeout) as caught:
            filled.find_one({"key": 700}, max_time_ms=300)
        assert caught.value.code == 50
        with pytest.raises(ExecutionTimeout):
            list(filled.find(max_time_ms=300))
        with pytest.raises(ExecutionTimeout):
            filled.database.command(
                "update", filled.name, updates=[{"q": {"key": 700}, "u": {"$set": {"a": 1}}}], maxTimeMS=300
            )
        # The other shard is not affected.
        assert filled.find_one({"key": 10}) == {"_id": 1, "key": 10}
    assert filled.find_one({"key": 700}) is not None
    assert filled.count_documents({}) == 100


@pytest.mark.parametrize("process", ["shard1.0.mongod", "shard1.0.shardd"])
def test_a_change_stream_waits_no_longer_than_asked_for_a_shard_that_hangs(
    cluster: RunningCluster, ranged: Documents, process: str
) -> None:
    with (
        cluster.direct("router.0", socketTimeoutMS=LIMIT_MS) as client,
        client[ranged.database.name][ranged.name].watch(max_await_time_ms=200) as stream,
    ):
        assert stream.try_next() is None
        with stopped(cluster, process):
            ranged.insert_one({"key": 10})
            for _ in range(5):
                assert stream.try_next() is None, "the shard may have an earlier event"
        ranged.insert_one({"key": 700})
        keys = [next(stream)["fullDocument"]["key"] for _ in range(2)]
        assert keys == [10, 700]


def test_a_router_that_stood_still_finds_what_has_moved(cluster: RunningCluster, placed: Documents) -> None:
    placed.insert_many({"_id": n, "key": n * 10} for n in range(100))
    with cluster.direct("router.1") as client:
        seen = client[placed.database.name][placed.name]
        assert seen.count_documents({}) == 100
        with stopped(cluster, "router.1"):
            move: Document = {"find": {"key": 700}, "to": LOWER, "_waitForDelete": True}
            placed.database.client.admin.command("moveChunk", placed.full_name, **move)
            placed.insert_one({"_id": 100, "key": 1000})
        assert [document["_id"] for document in seen.find(sort=[("key", 1)])] == list(range(101))
        assert seen.update_one({"key": 700}, {"$set": {"a": 1}}).modified_count == 1
        assert seen.count_documents({"key": {"$gte": 500}}) == 51


def test_slow_shard_eventually_answers(cluster: RunningCluster, filled: Documents) -> None:
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.extend(document["key"] for document in filled.find().sort("key", 1)))
    with stopped(cluster, "shard1.0.mongod"):
        reader.start()
        # Others get their replies while it waits.
        for _ in range(20):
            assert filled.count_documents({"key": {"$lt": 500}}) == 50
        assert reader.is_alive()
    reader.join(30)
    assert read == list(range(0, 1000, 10))


@pytest.mark.parametrize("process", ["shard1.0.shardd", "shard1.0.mongod"])
def test_dead_process_of_a_shard(cluster: RunningCluster, filled: Documents, process: str) -> None:
    with dead(cluster, process):
        assert filled.find_one({"key": 10}) is not None
        assert filled.update_one({"_id": 1, "key": 10}, {"$set": {"a": 1}}).modified_count == 1
        with pytest.raises((OperationFailure, AutoReconnect)) as caught:
            filled.find_one({"key": 700}, max_time_ms=1000)
        assert getattr(caught.value, "code", 6) in (6, 50, 133)
    eventually(works(lambda: filled.find_one({"key": 700})), what="the shard serves again")
    assert filled.count_documents({}) == 100
    assert filled.insert_one({"key": 701}).acknowledged


def test_partial_results_of_a_dead_shard(cluster: RunningCluster, filled: Documents) -> None:
    command = {"find": filled.name, "sort": {"key": 1}, "allowPartialResults": True}
    assert "partialResultsReturned" not in filled.database.command(command)["cursor"]
    with dead(cluster, "shard1.0.mongod", "shard1.0.shardd"):
        reply = filled.database.command(command)
        assert reply["cursor"]["partialResultsReturned"] is True
        assert [document["key"] for document in reply["cursor"]["firstBatch"]] == list(range(0, 500, 10))
        with pytest.raises(OperationFailure) as caught:
            list(filled.find({}, max_time_ms=1000))
        assert caught.value.code in (6, 50, 133)
    eventually(works(lambda: filled.find_one({"key": 700})), what="the shard serves again")
    assert filled.count_documents({}) == 100


def test_dead_config_server_does_not_affect_known_collections(cluster: RunningCluster, filled: Documents) -> None:
    with dead(cluster, "config.0.configd"):
        assert filled.count_documents({}) == 100
        filled.insert_one({"_id": "meanwhile", "key": 700})
        with pymongo.timeout(5):
            assert "map" in filled.database.client.admin.command("getShardMap")
        metrics = cluster.metrics["router.0"]
        eventually(lambda: sample(metrics, "config_primary_known") == 0, what="the router misses the config servers")
        assert http_get(metrics, "/readyz")[0] == HTTPStatus.OK
    assert filled.find_one({"_id": "meanwhile"}) is not None
    eventually(works(lambda: filled.database.client.admin.command("balancerStatus")))
    eventually(lambda: sample(metrics, "config_primary_known") == 1)


@pytest.mark.parametrize(
    "command",
    [
        {"find": "ranged", "filter": SLOW},
        {"find": "ranged", "filter": {"key": 10, **SLOW}},
        {"aggregate": "ranged", "pipeline": [{"$match": {"key": {"$lt": 500}, **SLOW_IN_PIPELINE}}], "cursor": {}},
        {"count": "ranged", "query": SLOW},
        {"distinct": "ranged", "key": "key", "query": SLOW},
    ],
    ids=["find", "find on one shard", "aggregate", "count", "distinct"],
)
def test_disconnect_ends_the_operation(
    cluster: RunningCluster, filled: Documents, lower_mongod: Client, upper_mongod: Client, command: Document
) -> None:
    filled.insert_many({"key": 10} for _ in range(50))
    metrics = cluster.metrics["router.0"]
    left = f'operations_total{{command="{next(iter(command))}",outcome="ClientDisconnect"}}'
    left_before = sample(metrics, left)
    with raw_client(cluster.address("router.0")) as leaving:
        leaving.send_command(command, db=filled.database.name)
        eventually(lambda: operations_on(lower_mongod, filled.full_name), what="the shard is at work")
    eventually(lambda: sample(metrics, left) == left_before + 1, what="the operation counts as left")
    for mongod in (lower_mongod, upper_mongod):
        assert_idle(mongod, filled.full_name)


def test_disconnect_ends_a_get_more(
    cluster: RunningCluster, filled: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    with raw_client(cluster.address("router.0")) as leaving:
        slow_after = {"$where": "this.key % 500 < 50 || sleep(600) || true"}
        find = {"find": filled.name, "filter": slow_after, "batchSize": 2}
        cursor = leaving.command(find, db=filled.database.name)["cursor"]
        more = {"getMore": cursor["id"], "collection": filled.name, "batchSize": 80}
        leaving.send_command(more, db=filled.database.name)
        eventually(lambda: operations_on(lower_mongod, filled.full_name), what="the shard is at work")
    for mongod in (lower_mongod, upper_mongod):
        assert_idle(mongod, filled.full_name)


def assert_idle(mongod: Client, namespace: str) -> None:
    """Wait until nothing runs on a collection, well before the operation would end by itself."""
    eventually(lambda: not operations_on(mongod, namespace), within=15, what="the operation is gone")


def test_two_hundred_concurrent_clients(cluster: RunningCluster, ranged: Documents) -> None:
    count, each = 200, 5
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []
    client = cluster.client(maxPoolSize=count)

    def work(number: int) -> None:
        try:
            collection = client[ranged.database.name][ranged.name]
            barrier.wait(60)
            for step in range(each):
                identity = number * each + step
                collection.insert_one({"_id": identity, "key": identity % 1000})
                assert collection.find_one({"_id": identity, "key": identity % 1000}) is not None
                updated = collection.update_one({"_id": identity, "key": identity % 1000}, {"$set": {"by": number}})
                assert updated.modified_count == 1
        except BaseException as failure:
            failures.append(failure)

    with client:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert failures == []
    assert ranged.count_documents({"by": {"$exists": True}}) == count * each
