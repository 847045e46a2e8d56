"""Shard key values that are nested as deep as documents may be: the documents that record a move are deeper."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER, Documents, placement


def nested(levels: int, leaf: int) -> Any:  # noqa: ANN401 - a document of documents, or the leaf
    return {"a": nested(levels - 1, leaf)} if levels else leaf


def deep_collection(placed: Documents, levels: int) -> Documents:
    """A collection of two chunks with documents whose keys have so many levels."""
    database = placed.database
    admin, collection = database.client.admin, database["deep"]
    admin.command("shardCollection", collection.full_name, key={"key": 1})
    collection.insert_many({"_id": number, "key": nested(levels, number)} for number in range(10))
    admin.command("split", collection.full_name, middle={"key": nested(levels, 5)})
    return collection


@pytest.mark.parametrize("levels", [170, 176, 177])
def test_chunks_move(placed: Documents, levels: int) -> None:
    client, collection = placed.database.client, deep_collection(placed, levels)
    move = {"moveChunk": collection.full_name, "find": {"key": nested(levels, 7)}, "_waitForDelete": True}
    for target in (UPPER, LOWER):
        client.admin.command({**move, "to": target})
        assert placement(client, collection.full_name) == [LOWER, target]
        assert collection.count_documents({}) == 10


def test_a_move_that_cannot_be_recorded_is_refused(placed: Documents) -> None:
    client, collection = placed.database.client, deep_collection(placed, 178)
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("moveChunk", collection.full_name, find={"key": nested(178, 7)}, to=UPPER)
    assert failure.value.code == ErrorCode.Overflow
    assert placement(client, collection.full_name) == [LOWER, LOWER]
    assert collection.count_documents({}) == 10
    client.admin.command("moveChunk", placed.full_name, find={"key": 0}, to=UPPER)


@pytest.mark.parametrize("levels", [176, 177, 178])
def test_the_key_is_refined(placed: Documents, levels: int) -> None:
    collection = deep_collection(placed, levels)
    admin = placed.database.client.admin
    collection.create_index([("key", 1), ("_id", 1)])
    admin.command("refineCollectionShardKey", collection.full_name, key={"key": 1, "_id": 1})
    assert collection.count_documents({}) == 10
    assert collection.find_one({"key": nested(levels, 7)}) == {"_id": 7, "key": nested(levels, 7)}
    collection.drop()
