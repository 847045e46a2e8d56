"""A collection whose bounds have megabytes, which documents may have."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER, Documents, placement
from tests.integration.sharded import chunks as chunks_of

LARGEST = pytest.mark.exhaustive
"""On a busy machine, a mongod with a small cache may take minutes to write such documents and their index entries."""


@pytest.mark.parametrize(
    ("size", "chunks"),
    [(3_500_000, 4), pytest.param(5_300_000, 4, marks=LARGEST), pytest.param(8_000_000, 2, marks=LARGEST)],
)
def test_it_can_be_changed_and_dropped(placed: Documents, size: int, chunks: int) -> None:
    """Though a command has no room for the bounds of two of its chunks."""
    database = placed.database
    admin, collection = database.client.admin, database["large"]
    admin.command("shardCollection", collection.full_name, key={"key": 1})
    collection.insert_many({"_id": number, "key": letter * size} for number, letter in enumerate("adhmz"))
    admin.command("reshardCollection", collection.full_name, key={"key": 1, "_id": 1}, numInitialChunks=chunks)
    assert len(placement(database.client, collection.full_name)) == chunks
    last = chunks_of(database.client, collection.full_name)[-1]
    other = LOWER if last["shard"] == UPPER else UPPER
    admin.command("moveChunk", collection.full_name, bounds=[last["min"], last["max"]], to=other)
    collection.create_index({"key": 1, "_id": 1, "more": 1})
    admin.command("refineCollectionShardKey", collection.full_name, key={"key": 1, "_id": 1, "more": 1})
    database.command("collMod", collection.name, validationLevel="moderate")
    collection.rename("renamed")
    renamed = database["renamed"]
    assert renamed.count_documents({}) == 5
    renamed.drop()
    assert "renamed" not in database.list_collection_names()


@LARGEST
def test_chunks_that_shards_could_not_persist_are_not_made(placed: Documents) -> None:
    database = placed.database
    admin, collection = database.client.admin, database["too_large"]
    admin.command("shardCollection", collection.full_name, key={"key": 1})
    collection.insert_many({"key": letter * 6_000_000} for letter in "amz")
    admin.command("split", collection.full_name, middle={"key": "a" * 6_000_000})
    refused: list[dict[str, Any]] = [
        {"split": collection.full_name, "middle": {"key": "m" * 6_000_000}},
        {"reshardCollection": collection.full_name, "key": {"key": 1, "_id": 1}, "numInitialChunks": 3},
    ]
    for command in refused:
        with pytest.raises(OperationFailure, match="bounds of a chunk are too large") as failure:
            admin.command(command)
        assert failure.value.code == ErrorCode.BSONObjectTooLarge
    assert len(placement(database.client, collection.full_name)) == 2
    collection.drop()
    assert collection.name not in database.list_collection_names()
