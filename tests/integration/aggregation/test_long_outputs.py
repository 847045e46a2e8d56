"""``$out`` and ``$merge`` of more than one batch from several shards, which the mongod of one of them merges."""

import pytest
from pymongo.database import Database

from tests.integration.sharded import SPLIT_AT, Document, Documents, shard_by_range
from tests.local_cluster import Client, RunningCluster

DOCUMENTS = 3_000
TEXT = "x" * 10_000
"""Together 30 MB: a batch of a writing stage has 16."""

PIPELINES: dict[str, list[Document]] = {
    "out": [{"$out": "target"}],
    "sorted out": [{"$sort": {"order": 1}}, {"$out": "target"}],
    "limited out": [{"$sort": {"order": 1}}, {"$limit": DOCUMENTS - 1}, {"$out": "target"}],
    "grouped out": [{"$group": {"_id": "$_id", "order": {"$first": "$order"}}}, {"$out": "target"}],
    "joined out": [
        {"$lookup": {"from": "ranged", "localField": "_id", "foreignField": "_id", "as": "same"}},
        {"$project": {"order": 1, "text": 1, "joined": {"$size": "$same"}}},
        {"$out": "target"},
    ],
    "strict merge": [{"$merge": {"into": "target", "whenMatched": "fail"}}],
    "merge": [{"$merge": {"into": "target"}}],
}


@pytest.fixture(scope="module")
def filled(client: Client) -> Database[Document]:
    database = client["long_outputs"]
    client.drop_database(database)
    collection = shard_by_range(database)
    collection.insert_many(
        {"_id": n, "key": n % (2 * SPLIT_AT), "order": n * 7 % DOCUMENTS, "text": TEXT} for n in range(DOCUMENTS)
    )
    return database


@pytest.mark.parametrize("kind", PIPELINES)
def test_more_than_one_batch_is_written(filled: Database[Document], kind: str) -> None:
    filled.drop_collection("target")
    filled.ranged.aggregate(PIPELINES[kind])
    expected = DOCUMENTS - 1 if kind == "limited out" else DOCUMENTS
    assert filled.target.count_documents({"order": {"$exists": True}}) == expected
    if kind in ("sorted out", "limited out"):
        assert orders(filled.target) == list(range(expected))
    if kind == "joined out":
        assert filled.target.count_documents({"joined": 1}) == expected


def test_the_order_is_kept_by_a_mongod_that_sorts_on_disk(cluster: RunningCluster, filled: Database[Document]) -> None:
    mongods = [cluster.direct(f"{shard}.0.mongod") for shard in cluster.shards]
    parameter = "internalQueryMaxBlockingSortMemoryUsageBytes"
    before = [each.admin.command({"getParameter": 1, parameter: 1})[parameter] for each in mongods]
    try:
        for each in mongods:
            each.admin.command({"setParameter": 1, parameter: 4 << 20})
        # What the client says is about its own stages.
        filled.ranged.aggregate([{"$match": {"key": {"$gte": 0}}}, {"$out": "target"}], allowDiskUse=False)
        assert filled.target.count_documents({}) == DOCUMENTS
        filled.ranged.aggregate([{"$sort": {"order": 1}}, {"$out": "target"}], allowDiskUse=True)
        assert orders(filled.target) == list(range(DOCUMENTS))
    finally:
        for each, value in zip(mongods, before, strict=True):
            each.admin.command({"setParameter": 1, parameter: value})
            each.close()


def test_a_strict_merge_still_refuses_what_is_there(filled: Database[Document]) -> None:
    filled.drop_collection("target")
    filled.target.insert_one({"_id": DOCUMENTS - 1})
    with pytest.raises(Exception, match="found an existing document with the same values"):
        filled.ranged.aggregate(PIPELINES["strict merge"])


def orders(collection: Documents) -> list[int]:
    """In the order in which the documents were written."""
    return [each["order"] for each in collection.find({}, {"order": 1}).sort("$natural", 1)]
