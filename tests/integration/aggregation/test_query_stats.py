"""Aggregations among the operations that a router counts by shape."""

from typing import Any

import bson
import pytest
from pymongo.database import Database

from tests.integration.sharded import Document, shard_by_range
from tests.local_cluster import Client


def shape_counts(client: Client, namespace: str) -> dict[str, dict[str, Any]]:
    """The metrics of aggregations that write, and of ``getMore``, on a collection."""
    found = {}
    for each in client.admin.aggregate([{"$queryStats": {}}]):
        shape = each["key"].get("queryShape", {"cmdNs": {"db": "", "coll": ""}})
        is_there = f"{shape['cmdNs']['db']}.{shape['cmdNs']['coll']}" == namespace
        if is_there and (shape["command"] == "getMore" or "$merge" in str(shape.get("pipeline"))):
            found[shape["command"]] = each["metrics"]
    return found


def test_a_write_at_the_first_get_more_is_counted_by_shape(client: Client, database: Database[Document]) -> None:
    database.create_collection("to_read_later")
    database.to_read_later.insert_one({"_id": 1})
    command = {"aggregate": "to_read_later", "pipeline": [{"$merge": "read_later"}], "cursor": {"batchSize": 0}}
    cursor = database.command(command)["cursor"]
    opened = shape_counts(client, f"{database.name}.to_read_later")
    assert opened.keys() == {"aggregate"}
    database.command({"getMore": cursor["id"], "collection": "to_read_later"})
    assert database.read_later.count_documents({}) == 1
    read = shape_counts(client, f"{database.name}.to_read_later")
    assert read.keys() == {"aggregate", "getMore"}
    for metrics in (opened["aggregate"], read["aggregate"], read["getMore"]):
        assert (metrics["execCount"], metrics["errorCount"], metrics["targetedCount"]) == (1, 0, 1)
        assert metrics["bytesReturned"]["sum"] > 0


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("text", ["", "x" * 2_000], ids=["short", "long"])
def test_all_returned_documents_are_counted_by_shape(
    client: Client, database: Database[Document], text: str, is_sharded: bool
) -> None:
    """Long batches, which are relayed while they arrive, are counted too."""
    collection = shard_by_range(database, "returned", key="_id") if is_sharded else database["returned"]
    collection.insert_many([{"_id": number, "text": text} for number in range(1_000)])
    returned = stored = 0
    for find in (
        collection.find({"_id": 5}),
        collection.find({"_id": {"$in": [1, 900, 3_000]}}),
        collection.find({"_id": 3_000}),
        collection.find(),
        collection.find().batch_size(300),
        collection.find({}, sort=[("text", 1), ("_id", -1)]),
        collection.aggregate([{"$match": {"_id": {"$gte": 1}}}]),
    ):
        raw = [bson.encode(each) for each in find]
        returned, stored = returned + len(raw), stored + sum(map(len, raw))
    counted = [
        each["metrics"]
        for each in client.admin.aggregate([{"$queryStats": {}}])
        if each["key"].get("queryShape", {}).get("cmdNs") == {"db": database.name, "coll": "returned"}
    ]
    assert sum(each["docsReturned"]["sum"] for each in counted) == returned
    assert 0 < sum(each["bytesReturned"]["sum"] for each in counted) - stored < returned * 30
