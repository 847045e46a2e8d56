"""Pipelines of one router that name collections whose placement the other router has changed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import (
    LOWER,
    UPPER,
    Document,
    Documents,
    catalog_entry,
    shard_by_range,
    shard_collection,
)
from tests.integration.waiting import eventually
from tests.local_cluster import Client

JOIN: Final = {"$lookup": {"from": "target", "localField": "_id", "foreignField": "_id", "as": "x"}}
OUT_TO_SHARDED: Final = 28769


@pytest.fixture
def seen(other_client: Client, database: Database[Document]) -> Database[Document]:
    """The database through the second router, whose cache has both collections as unsharded."""
    seen = other_client[database.name]
    seen.source.insert_many([{"_id": n} for n in range(10)])
    seen.target.insert_many([{"_id": n} for n in range(10)])
    assert len(list(seen.source.aggregate([JOIN, {"$match": {"x": {"$ne": []}}}]))) == 10
    return seen


def shard_and_move(database: Database[Document]) -> None:
    """Shard the target and move all of it to the upper shard."""
    shard_collection(database, "target", {"_id": 1})
    database.client.admin.command("moveChunk", f"{database.name}.target", find={"_id": 0}, to=UPPER)


def uuids(mongod: Client, database: Database[Document]) -> list[Any]:
    """The UUID of the target on one shard, if it exists there."""
    named = mongod[database.name].list_collections(filter={"name": "target"})
    return [each["info"]["uuid"] for each in named]


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$out": "target"}, OUT_TO_SHARDED),
    ],
)
def test_a_collection_sharded_since_is_not_mistaken_for_unsharded(
    database: Database[Document],
    seen: Database[Document],
    lower_mongod: Client,
    upper_mongod: Client,
    stage: dict[str, Any],
    code: int,
) -> None:
    shard_and_move(database)
    seen.source.insert_one({"_id": 1000})
    with pytest.raises(OperationFailure) as failure:
        seen.source.aggregate([{"$match": {}}, stage])
    assert failure.value.code == code
    assert database.target.count_documents({}) == 10
    assert lower_mongod[database.name].target.count_documents({"_id": 1000}) == 0
    entry = catalog_entry(database.client, f"{database.name}.target")
    assert entry is not None
    assert uuids(lower_mongod, database) == uuids(upper_mongod, database) == [Binary.from_uuid(entry["uuid"])]


def test_a_collection_sharded_since_is_merged_into_on_all_shards(
    database: Database[Document], seen: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    shard_and_move(database)
    seen.source.insert_many([{"_id": 1000}, {"_id": -1000}])
    seen.source.aggregate([{"$merge": "target"}])
    assert database.target.count_documents({}) == 12
    stored = [mongod[database.name].target.count_documents({}) for mongod in (lower_mongod, upper_mongod)]
    assert sum(stored) == 12


@pytest.mark.parametrize("source", ["source", "divided"])
@pytest.mark.parametrize("stage", [{"$out": "target"}, {"$merge": "target"}], ids=str)
def test_a_target_sharded_between_the_opening_and_the_first_batch(
    database: Database[Document], seen: Database[Document], stage: dict[str, Any], source: str
) -> None:
    """Nothing is written before the first ``getMore``, which meets the sharded collection."""
    divided = shard_by_range(database, "divided")
    divided.insert_many([{"key": n} for n in (-1, 1)])
    seen.source.insert_one({"_id": 1000})
    cursor_id = open_writing(seen, source, stage)
    assert database.target.count_documents({}) == 10
    shard_and_move(database)
    more = {"getMore": Int64(cursor_id), "collection": source}
    if "$out" in stage:
        with pytest.raises(OperationFailure, match="cannot rename to sharded collection") as failure:
            seen.command(more)
        assert failure.value.code == ErrorCode.IllegalOperation
    else:
        assert seen.command(more)["cursor"] == {"nextBatch": [], "id": 0, "ns": f"{seen.name}.{source}"}
    with pytest.raises(OperationFailure, match=f"cursor id {cursor_id} not found"):
        seen.command(more)
    written = {"source": 1, "divided": 2}[source] if "$merge" in stage else 0
    assert database.target.count_documents({}) == 10 + written


def open_writing(database: Database[Document], source: str, stage: dict[str, Any]) -> int:
    """Open an aggregation that writes, which a driver would not do with ``batchSize: 0``; return its cursor's id."""
    command = {"aggregate": source, "pipeline": [{"$match": {}}, stage], "cursor": {"batchSize": 0}}
    cursor = database.command(command)["cursor"]
    assert cursor == {"firstBatch": [], "id": cursor["id"], "ns": f"{database.name}.{source}"}
    assert cursor["id"] != 0
    return int(cursor["id"])


def test_a_write_that_a_client_does_not_begin(database: Database[Document]) -> None:
    database.source.insert_one({"_id": 1})
    cursor_id = open_writing(database, "source", {"$out": "target"})
    killed = database.command({"killCursors": "source", "cursors": [Int64(cursor_id)]})
    assert killed["cursorsKilled"] == [cursor_id]
    assert "target" not in database.list_collection_names()
    begun = open_writing(database, "source", {"$out": "target"})
    database.command({"getMore": Int64(begun), "collection": "source"})
    assert database.target.count_documents({}) == 1


@pytest.mark.parametrize(
    ("stage", "count"),
    [(JOIN, 10), ({"$unionWith": {"coll": "source", "pipeline": [JOIN]}}, 20), ({"$unionWith": "target"}, 20)],
)
def test_a_collection_sharded_since_is_joined(
    database: Database[Document], seen: Database[Document], stage: dict[str, Any], count: int
) -> None:
    shard_and_move(database)
    found = list(seen.source.aggregate([stage]))
    assert len(found) == count
    assert all(each["x"] == [{"_id": each["_id"]}] for each in found if "x" in each)


def test_explain_of_a_join_with_a_collection_sharded_since(
    database: Database[Document], seen: Database[Document]
) -> None:
    shard_and_move(database)
    reply = seen.command("aggregate", "source", pipeline=[JOIN], explain=True)
    assert reply["splitPipeline"]["mergerPart"][1:] == [JOIN]


def test_a_collection_that_is_unsharded_again_can_be_used_again(
    database: Database[Document], seen: Database[Document]
) -> None:
    shard_and_move(database)
    assert len(list(seen.source.aggregate([JOIN, {"$match": {"x": {"$ne": []}}}]))) == 10
    database.target.drop()
    database.target.insert_one({"_id": 3})
    assert [each["_id"] for each in seen.source.aggregate([JOIN, {"$match": {"x": {"$ne": []}}}])] == [3]
    seen.source.aggregate([{"$merge": "target"}])
    assert database.target.count_documents({}) == 10


def test_a_collection_on_one_shard_again_needs_no_merging(
    client: Client, placed: Documents, other_client: Client
) -> None:
    placed.insert_many([{"_id": n, "key": n} for n in (1, 2, 600)])
    seen = other_client[placed.database.name][placed.name]
    grouping: list[dict[str, Any]] = [{"$group": {"_id": None, "sum": {"$sum": "$key"}}}]
    assert [each["sum"] for each in seen.aggregate(grouping)] == [603]
    client.admin.command("moveChunk", placed.full_name, find={"key": 600}, to=LOWER)
    assert [each["sum"] for each in seen.aggregate(grouping)] == [603]
    assert seen.database.command("aggregate", seen.name, pipeline=grouping, explain=True)["splitPipeline"] is None


def test_the_database_of_a_target_was_recreated(client: Client, seen: Database[Document]) -> None:
    name = f"{seen.name}_target"
    client.admin.command("enableSharding", name, primaryShard=LOWER)
    merge = {"$merge": {"into": {"db": name, "coll": "target"}}}
    try:
        seen.source.aggregate([merge])
        client.drop_database(name)
        client.admin.command("enableSharding", name, primaryShard=LOWER)
        seen.source.aggregate([merge])
        assert client[name].target.count_documents({}) == 10
        client.drop_database(name)
        client.admin.command("enableSharding", name, primaryShard=UPPER)
        seen.source.aggregate([merge])
        assert client[name].target.count_documents({}) == 10
    finally:
        client.drop_database(name)


def test_documents_without_a_collection_are_joined(database: Database[Document], seen: Database[Document]) -> None:
    """A mongos refuses to read a collection that is not sharded. The router notices that it is sharded now."""
    pipeline: list[dict[str, Any]] = [{"$documents": [{"_id": 3}]}, JOIN]
    with pytest.raises(OperationFailure, match=r"\$lookup must run on a shard"):
        seen.aggregate(pipeline)
    shard_and_move(database)
    assert [each["x"] for each in seen.aggregate(pipeline)] == [[{"_id": 3}]]


def test_a_target_sharded_and_moved_while_a_merge_runs(database: Database[Document], upper_mongod: Client) -> None:
    """Through one router: the documents that the pipeline has written move with the collection."""
    database.source.insert_many([{"_id": n} for n in range(300)])
    sleep = {"body": "function() { sleep(9); return true }", "args": [], "lang": "js"}
    slowly = {"$match": {"$expr": {"$function": sleep}}}
    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(lambda: list(database.source.aggregate([slowly, {"$merge": "target"}])))
        running: list[dict[str, Any]] = [
            {"$currentOp": {}},
            {"$match": {"command.aggregate": "source", "command.$db": database.name}},
        ]
        eventually(lambda: list(database.client.admin.aggregate(running)), what="the pipeline runs")
        shard_and_move(database)
        merging.result()
    assert upper_mongod[database.name].target.count_documents({}) == 300
    assert all(database.target.find_one({"_id": n}) for n in range(0, 300, 50))


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_join_compares_by_the_collation_of_a_recreated_collection(
    client: Client, database: Database[Document], other_client: Client, *, is_sharded: bool
) -> None:
    pipeline = [{"$lookup": {"from": "target", "localField": "a", "foreignField": "a", "as": "x"}}]
    folding = {"locale": "en", "strength": 2}
    for primary, collation, count in ((LOWER, None, 1), (UPPER, folding, 2)):
        client.drop_database(database.name)
        client.admin.command("enableSharding", database.name, primaryShard=primary)
        client.admin.command("shardCollection", f"{database.name}.target", key={"_id": 1})
        database.target.insert_many([{"_id": 1, "a": "A"}, {"_id": 2, "a": "a"}])
        database.create_collection("source", collation=collation)
        if is_sharded:
            simple = {"locale": "simple"}
            client.admin.command("shardCollection", f"{database.name}.source", key={"k": 1}, collation=simple)
        database.source.insert_one({"_id": 1, "k": 1, "a": "a"})
        [found] = other_client[database.name].source.aggregate(pipeline)
        assert len(found["x"]) == count
