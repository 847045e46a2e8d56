"""Merging documents of two shards: with bytes that Python cannot decode, and by a collection's default collation."""

from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.integration.raw_client import raw_client
from tests.integration.sharded import Document, Documents, shard_by_range, shard_collection
from tests.local_cluster import RunningCluster

ODD: list[bytes] = [
    b"\x02text\0" + (3).to_bytes(4, "little") + b"\xff\xfe\0",  # not UTF-8
    b"\x09date\0" + (2**62).to_bytes(8, "little"),  # later than Python's last year
    b"\x09date\0" + (-(2**62)).to_bytes(8, "little", signed=True),
    b"\x05data\0" + (6).to_bytes(4, "little") + b"\x02" + (9).to_bytes(4, "little") + b"ab",  # wrong inner length
    b"\x06old\0",  # undefined
    b"\x0epast\0" + (2).to_bytes(4, "little") + b"a\0",  # symbol
]
"""Raw elements, each for one document."""


def odd_documents(first_key: int) -> list[bytes]:
    """A document for each of `ODD`."""
    return [document(bson.encode({"_id": first_key + n, "key": first_key + n}), each) for n, each in enumerate(ODD)]


def document(begun: bytes, element: bytes) -> bytes:
    return (len(begun) + len(element)).to_bytes(4, "little") + begun[4:-1] + element + b"\0"


@pytest.fixture
def odd(database: Database[Document]) -> Documents:
    """Each odd value on both shards, in a collection and in one to join it with."""
    for name in ("ranged", "other"):
        collection = shard_by_range(database, name)
        for first_key in (100, 700):
            collection.insert_many([RawBSONDocument(each) for each in odd_documents(first_key)])
    return database["ranged"]


JOIN: Document = {"$lookup": {"from": "other", "localField": "key", "foreignField": "key", "as": "joined"}}
PIPELINES: dict[str, list[Document]] = {
    "concatenated": [{"$match": {}}, {"$sort": {"key": 1}}],
    "merged by a shard": [{"$setWindowFields": {"sortBy": {"key": 1}, "output": {"number": {"$documentNumber": {}}}}}],
    "grouped": [{"$group": {"_id": "$key", "all": {"$push": "$$ROOT"}}}, {"$unwind": "$all"}, {"$sort": {"_id": 1}}],
    "joined": [JOIN, {"$unwind": "$joined"}, {"$replaceWith": "$joined"}, {"$sort": {"key": 1}}],
    "joined as a whole": [JOIN, {"$replaceWith": {"$first": "$joined"}}, {"$sort": {"key": 1}}],
    "joined by variable": [
        {"$lookup": {"from": "other", "let": {"d": "$$ROOT"}, "pipeline": [{"$match": {"key": 100}}], "as": "joined"}},
        {"$unset": "joined"},
        {"$sort": {"key": 1}},
    ],
    "united": [{"$unionWith": "other"}, {"$sort": {"key": 1}}],
    "in a facet": [{"$facet": {"a": [JOIN, {"$sort": {"key": 1}}]}}, {"$unwind": "$a"}, {"$replaceWith": "$a"}],
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_bytes_that_cannot_be_decoded_pass_unchanged(cluster: RunningCluster, odd: Documents, kind: str) -> None:
    with raw_client(cluster.address("router.0")) as client:
        command: dict[str, Any] = {"aggregate": "ranged", "pipeline": PIPELINES[kind], "cursor": {"batchSize": 1000}}
        client.send_command(command, db=odd.database.name)
        frame = client.receive()
    assert b"errmsg" not in frame, frame
    for element in ODD[:4]:
        assert frame.count(element) >= 2, f"{element!r} of both shards"


@pytest.mark.parametrize("stages", [[], [{"$skip": 0}], [{"$group": {"_id": "$name"}}, {"$sort": {"_id": 1}}]], ids=str)
def test_sorting_by_the_default_collation(database: Database[Document], stages: list[Document]) -> None:
    names = ["a", "B", "c", "D", "ä", "Z", "z", "E", "é"]
    collation = {"locale": "de", "strength": 2}
    plain = database.create_collection("plain", collation=collation)
    namespace = f"{database.name}.spread"
    database.create_collection("spread", collation=collation)
    shard_collection(database, "spread", {"key": 1}, collation={"locale": "simple"})
    database.client.admin.command("split", namespace, middle={"key": 4})
    database.client.admin.command("moveChunk", namespace, find={"key": 4}, to="shard1")
    for collection in (plain, database["spread"]):
        collection.insert_many([{"_id": n, "key": n, "name": name} for n, name in enumerate(names)])
    pipeline = [{"$sort": {"name": 1, "_id": 1}}, *stages]
    found, expected = (list(each.aggregate(pipeline)) for each in (database["spread"], plain))
    if "$group" in str(stages):
        assert [str(each["_id"]).lower() for each in found] == [str(each["_id"]).lower() for each in expected]
    else:
        assert found == expected
        assert list(database["spread"].find().sort({"name": 1, "_id": 1})) == expected
        assert list(database["spread"].find().sort({"name": -1, "_id": 1}).limit(4)) == list(
            plain.find().sort({"name": -1, "_id": 1}).limit(4)
        )
