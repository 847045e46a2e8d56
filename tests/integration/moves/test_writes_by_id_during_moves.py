"""Writes by ``_id`` alone, which go to all shards, while the documents move from one shard to another."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo import UpdateOne
from pymongo.database import Database

from shardwright.shardd.context.fail_point_names import HANG_AFTER_BLOCKING_WRITES
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.migration.moving import moving

DOCUMENTS = 20
WRITERS = 4
MOVES = 12


@pytest.fixture
def filled(database: Database[Document]) -> Documents:
    """Documents on the lower shard, whose upper half may move."""
    collection = shard_by_range(database)
    collection.insert_many({"_id": n, "key": n, "n": 0} for n in range(DOCUMENTS))
    database.client.admin.command("split", collection.full_name, middle={"key": DOCUMENTS // 2})
    return collection


def writes_on(mongod: Client, collection: Documents) -> int:
    """The number of writes that a mongod has executed on a collection."""
    (found,) = mongod[collection.database.name][collection.name].aggregate([{"$collStats": {"latencyStats": {}}}])
    return int(found["latencyStats"]["writes"]["ops"])


def modified_one(collection: Documents, identity: int) -> int:
    return collection.update_one({"_id": identity}, {"$inc": {"n": 1}}).modified_count


def deleted_one(collection: Documents, identity: int) -> int:
    return collection.delete_one({"_id": identity}).deleted_count


def modified_some(collection: Documents, identity: int) -> int:
    updates = [UpdateOne({"_id": each}, {"$inc": {"n": 1}}) for each in (0, identity)]
    return collection.bulk_write(updates, ordered=False).modified_count - 1


@pytest.mark.parametrize("retries", [True, False])
@pytest.mark.parametrize("write", [modified_one, deleted_one, modified_some])
def test_a_document_that_moves_between_two_executions_is_found(
    cluster: RunningCluster,
    filled: Documents,
    upper_mongod: Client,
    write: Callable[[Documents, int], int],
    retries: bool,
) -> None:
    range_ = {"min": {"key": DOCUMENTS // 2}, "max": {"key": SPLIT_AT}, "toShard": UPPER}
    with (
        cluster.client(retryWrites=retries) as client,
        ThreadPoolExecutor(1) as pool,
        cluster.direct("shard0.0.shardd") as donor,
        fail_point(donor, HANG_AFTER_BLOCKING_WRITES) as point,
        moving(cluster.address("router.0"), {"moveRange": filled.full_name, **range_}) as move,
    ):
        point.wait_entered()
        before = writes_on(upper_mongod, filled)
        # The recipient finds nothing yet, and the donor, once it leaves its critical section, nothing any more.
        written = pool.submit(write, client[filled.database.name][filled.name], DOCUMENTS - 1)
        eventually(lambda: writes_on(upper_mongod, filled) > before, what="the recipient has answered")
        point.turn_off()
        move.wait()
        assert written.result(30) == 1


@pytest.mark.exhaustive
def test_documents_that_always_exist_are_always_found(cluster: RunningCluster, filled: Documents) -> None:
    is_over = threading.Event()

    def count_on(client: Client) -> tuple[int, int]:
        collection, tries, missed = client[filled.database.name][filled.name], 0, 0
        while not is_over.is_set():
            tries += 1
            missed += modified_one(collection, DOCUMENTS - 1 - tries % 5) != 1
        return tries, missed

    with cluster.client() as client, ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(count_on, client) for _ in range(WRITERS)]
        for number in range(MOVES):
            target = (UPPER, LOWER)[number % 2]
            client.admin.command("moveChunk", filled.full_name, find={"key": DOCUMENTS - 1}, to=target)
        is_over.set()
        results = [writer.result(60) for writer in writers]
    tries, missed = (sum(column) for column in zip(*results, strict=True))
    assert (missed, sum(each["n"] for each in filled.find())) == (0, tries)
