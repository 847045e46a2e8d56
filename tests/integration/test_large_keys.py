"""A collection whose bounds have megabytes, which documents may have."""

import pytest

from tests.integration.sharded import Documents, placement


@pytest.mark.parametrize(("size", "chunks"), [(3_500_000, 3), (6_000_000, 2)])
def test_it_can_be_changed_and_dropped(placed: Documents, size: int, chunks: int) -> None:
    database = placed.database
    admin, collection = database.client.admin, database["large"]
    admin.command("shardCollection", collection.full_name, key={"key": 1})
    collection.insert_many({"_id": number, "key": letter * size} for number, letter in enumerate("amz"))
    admin.command("reshardCollection", collection.full_name, key={"key": 1, "_id": 1}, numInitialChunks=chunks)
    assert len(placement(database.client, collection.full_name)) == chunks
    database.command("collMod", collection.name, validationLevel="moderate")
    collection.rename("renamed")
    renamed = database["renamed"]
    assert renamed.count_documents({}) == 3
    renamed.drop()
    assert "renamed" not in database.list_collection_names()
