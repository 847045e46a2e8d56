"""One router changes the placement; the other, with an outdated cache, still returns correct results."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest
from pymongo import InsertOne, UpdateOne
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER, Document, Documents, placement, shard_by_range, shard_collection
from tests.local_cluster import Client, RunningCluster


@pytest.fixture
def stale(other_client: Client, placed: Documents) -> Documents:
    """A collection through the second router, whose cache has the initial placement.

    Documents with keys below 500 are on the lower shard; the upper shard's chunk is empty.
    """
    placed.insert_many({"_id": n, "key": n} for n in range(0, 500, 10))
    seen = other_client[placed.database.name][placed.name]
    assert seen.count_documents({}) == 50
    return seen


@pytest.fixture
def moved(client: Client, stale: Documents) -> Iterator[Documents]:
    """As `stale`, and the upper chunk has moved to the lower shard since."""
    client.admin.command("moveChunk", stale.full_name, find={"key": 700}, to=LOWER)
    assert placement(client, stale.full_name) == [LOWER, LOWER]
    yield stale
    # A write to a chunk's former owner leaves an orphan.
    assert stale.database.client.admin.command("flushRouterConfig")["flushed"]


def refreshes(client: Client) -> int:
    """Return the number of full and incremental refreshes of a router."""
    statistics = client.admin.command("serverStatus")["shardingStatistics"]["catalogCache"]
    return int(statistics["countFullRefreshesStarted"] + statistics["countIncrementalRefreshesStarted"])


def stored(mongod: Client, collection: Documents, query: Document | None = None) -> int:
    """The number of documents on one shard's mongod."""
    return mongod[collection.database.name][collection.name].count_documents(query or {})


def test_insert_goes_to_the_chunks_owner(moved: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    moved.insert_one({"key": 700})
    assert stored(lower_mongod, moved, {"key": 700}) == 1
    assert stored(upper_mongod, moved) == 0


def test_retries_are_counted(cluster: RunningCluster, moved: Documents) -> None:
    def retries() -> float:
        with urlopen(f"http://{cluster.metrics['router.1']}/metrics") as metrics:
            lines = metrics.read().decode().splitlines()
        [line] = [line for line in lines if line.startswith("shardwright_router_stale_version_retries_total ")]
        return float(line.split()[1])

    before = retries()
    moved.insert_one({"key": 700})
    assert retries() == before + 1
    moved.insert_one({"key": 701})
    assert retries() == before + 1


def test_divided_batch_goes_to_the_chunks_owners(moved: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    for ordered in (True, False):
        batch = [InsertOne({"key": key, "ordered": ordered}) for key in (1, 501, 2, 502, 503, 3)]
        assert moved.bulk_write(batch, ordered=ordered).inserted_count == 6
    assert stored(lower_mongod, moved) == 50 + 12
    assert stored(upper_mongod, moved) == 0


def test_update_upsert_and_delete(moved: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    assert moved.update_one({"key": 700}, {"$set": {"_id": 700}}, upsert=True).upserted_id == 700
    assert moved.update_many({"key": {"$gte": 490}}, {"$set": {"seen": 1}}).modified_count == 2
    assert (stored(lower_mongod, moved, {"seen": 1}), stored(upper_mongod, moved)) == (2, 0)
    assert moved.find_one_and_update({"key": 700}, {"$inc": {"seen": 1}}) == {"_id": 700, "key": 700, "seen": 1}
    assert moved.delete_one({"key": 700}).deleted_count == 1


def test_reads_find_later_writes(client: Client, moved: Documents) -> None:
    fresh = client[moved.database.name][moved.name]
    fresh.insert_many({"_id": n, "key": n} for n in range(500, 1000, 10))
    assert moved.find_one({"key": 700}) == {"_id": 700, "key": 700}
    assert [document["key"] for document in moved.find().sort("key", 1)] == list(range(0, 1000, 10))
    assert moved.count_documents({"key": {"$gte": 480}}) == 52
    assert moved.estimated_document_count() == 100
    assert sorted(moved.distinct("key", {"key": {"$gte": 900}})) == list(range(900, 1000, 10))
    assert len(list(moved.aggregate([{"$match": {"key": 700}}]))) == 1


def test_first_operation_may_be_any(client: Client, moved: Documents) -> None:
    """Each kind of read on a router that has not noticed the move yet."""
    fresh = client[moved.database.name][moved.name]
    fresh.insert_one({"_id": 700, "key": 700})
    shard = UPPER
    for read in (
        lambda: moved.find_one({"key": 700}) is not None,
        lambda: moved.count_documents({"key": 700}) == 1,
        lambda: moved.distinct("key", {"key": 700}) == [700],
        lambda: moved.find({"key": 700}).explain()["queryPlanner"]["winningPlan"]["stage"] == "SINGLE_SHARD",
    ):
        assert read()
        # Move it away and back, so that the next read also starts with a stale cache.
        fresh.delete_many({"key": 700})
        client.admin.command("moveChunk", moved.full_name, find={"key": 700}, to=shard)
        fresh.insert_one({"_id": 700, "key": 700})
        shard = LOWER if shard == UPPER else UPPER


def test_split_causes_no_refresh(client: Client, stale: Documents, other_client: Client) -> None:
    before = refreshes(other_client)
    client.admin.command("split", stale.full_name, middle={"key": 250})
    client.admin.command("split", stale.full_name, middle={"key": 750})
    assert stale.count_documents({}) == 50
    stale.insert_one({"key": 760})
    assert refreshes(other_client) == before


def test_first_chunk_on_a_shard(client: Client, database: Database[Document], other_client: Client) -> None:
    """A shard that owned no chunks of the collection has no metadata of it either."""
    shard_collection(database, "growing", {"key": 1})
    client.admin.command("split", f"{database.name}.growing", middle={"key": 0})
    seen = other_client[database.name].growing
    seen.insert_one({"key": -1})
    client.admin.command("moveChunk", seen.full_name, find={"key": 0}, to=UPPER)
    seen.insert_many([{"key": 1}, {"key": -2}])
    assert sorted(document["key"] for document in seen.find()) == [-2, -1, 1]


def test_dropped_and_sharded_again_by_another_key(client: Client, stale: Documents) -> None:
    fresh = client[stale.database.name][stale.name]
    fresh.drop()
    assert stale.find_one() is None
    shard_collection(fresh.database, fresh.name, {"other": 1})
    client.admin.command("split", stale.full_name, middle={"other": 0})
    client.admin.command("moveChunk", stale.full_name, find={"other": 0}, to=UPPER)
    fresh.insert_many({"_id": n, "other": n} for n in range(-5, 5))
    assert stale.count_documents({}) == 10
    assert stale.update_one({"other": 3}, {"$set": {"key": 1}}).modified_count == 1
    stale.insert_one({"_id": 100, "other": 100})
    assert fresh.find_one({"other": 100}) == {"_id": 100, "other": 100}


def test_dropped_and_used_unsharded(client: Client, stale: Documents, lower_mongod: Client) -> None:
    fresh = client[stale.database.name][stale.name]
    fresh.drop()
    fresh.insert_one({"_id": 1, "key": [1, 2]})
    assert stale.find_one() == {"_id": 1, "key": [1, 2]}
    stale.insert_one({"_id": 2, "key": 900})
    assert stored(lower_mongod, stale) == 2


def test_sharded_after_it_was_used_unsharded(
    client: Client, database: Database[Document], other_client: Client, upper_mongod: Client
) -> None:
    seen = other_client[database.name].ranged
    seen.insert_one({"_id": 0, "key": 0})
    seen.create_index("key")
    shard_by_range(database)
    seen.insert_many([{"_id": 1, "key": 600}, {"_id": 2, "key": 1}])
    assert stored(upper_mongod, seen) == 1
    assert seen.update_one({"key": 600}, {"$set": {"a": 1}}).modified_count == 1
    assert client[database.name].ranged.count_documents({}) == 3


def test_sharded_over_two_shards_before_it_is_converted_to_capped(
    database: Database[Document], other_client: Client
) -> None:
    seen = other_client[database.name].ranged
    seen.insert_one({"key": 0})
    seen.create_index("key")
    shard_by_range(database)
    with pytest.raises(OperationFailure, match=f"convertToCapped a sharded collection: {seen.full_name}") as failure:
        seen.database.command("convertToCapped", seen.name, size=4096)
    assert failure.value.code == ErrorCode.IllegalOperation


def test_sharded_before_it_was_dropped_and_used_unsharded(database: Database[Document], other_client: Client) -> None:
    """Commands for unsharded collections, each by a router that has not learned of it."""
    fresh, stale = (each["files.chunks"] for each in (database, other_client[database.name]))
    commands: list[Document] = [
        {"splitVector": stale.full_name, "keyPattern": {"_id": 1}, "maxChunkSizeBytes": 1 << 20},
        {"convertToCapped": stale.name, "size": 4096},
        {"filemd5": 1, "root": "files"},
    ]
    for command in commands:
        shard_by_range(database, fresh.name, key="n")
        assert stale.find_one() is None
        fresh.drop()
        fresh.create_index({"files_id": 1, "n": 1})
        assert stale.database.command(command)["ok"] == 1
        fresh.drop()


def test_output_that_was_sharded_after_it_was_used_unsharded(
    database: Database[Document], other_client: Client
) -> None:
    """A mapReduce that requires it to be sharded."""
    seen = other_client[database.name]
    seen.source.insert_one({"a": 1})
    assert seen.output.find_one() is None
    shard_by_range(database, "output", key="_id")
    functions = {"map": "function() { emit(this.a, 1); }", "reduce": "function(key, values) { return 1; }"}
    reply = seen.command({"mapReduce": "source", **functions, "out": {"merge": "output", "sharded": True}})
    assert reply["ok"] == 1
    assert database.output.find_one() == {"_id": 1, "value": 1}


def test_database_dropped_and_recreated_elsewhere(client: Client, other_client: Client, upper_mongod: Client) -> None:
    name = "integration_wandering"
    client.drop_database(name)
    client.admin.command("enableSharding", name, primaryShard=LOWER)
    other_client[name].things.insert_one({"_id": 1})
    client.drop_database(name)
    client.admin.command("enableSharding", name, primaryShard=UPPER)
    try:
        assert other_client[name].things.find_one() is None
        other_client[name].things.insert_one({"_id": 2})
        assert [document["_id"] for document in upper_mongod[name].things.find()] == [2]
    finally:
        client.drop_database(name)


def test_cursor_continues_through_a_move_of_an_empty_chunk(client: Client, stale: Documents) -> None:
    with stale.find().sort("key", 1).batch_size(5) as cursor:
        read = [next(cursor)["key"] for _ in range(10)]
        client.admin.command("moveChunk", stale.full_name, find={"key": 700}, to=LOWER)
        read += [document["key"] for document in cursor]
    assert read == list(range(0, 500, 10))


def test_many_clients_cause_few_refreshes(cluster: RunningCluster, moved: Documents, other_client: Client) -> None:
    """Operations that find the stale entry during a refresh wait for that refresh."""
    clients = 50
    before = refreshes(other_client)
    with (
        cluster.direct("router.1", maxPoolSize=clients) as client,
        ThreadPoolExecutor(clients) as pool,
    ):
        collection = client[moved.database.name][moved.name]
        written = list(pool.map(lambda n: collection.insert_one({"_id": 1000 + n, "key": 700 + n}), range(clients)))
    assert len(written) == clients
    assert moved.count_documents({"_id": {"$gte": 1000}}) == clients
    assert refreshes(other_client) - before == 1


def test_writers_on_both_routers_while_chunks_move(client: Client, moved: Documents, other_client: Client) -> None:
    """An empty chunk next to theirs moves back and forth; no write is lost or executed twice."""
    name, namespace = moved.database.name, moved.full_name
    client.admin.command("split", namespace, middle={"key": 5000})

    def write(connection: Client, first: int) -> int:
        collection = connection[name][moved.name]
        for n in range(first, first + 50):
            collection.bulk_write(
                [InsertOne({"_id": n, "key": n}), UpdateOne({"_id": n, "key": n}, {"$inc": {"times": 1}})]
            )
        return 50

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, client, 1000), pool.submit(write, other_client, 2000)]
        shard = UPPER
        while not all(writer.done() for writer in writers):
            client.admin.command("moveChunk", namespace, find={"key": 6000}, to=shard)
            shard = LOWER if shard == UPPER else UPPER
        assert sum(writer.result() for writer in writers) == 100
    assert moved.count_documents({"times": 1}) == 100
