"""Index definitions of the catalog."""

from typing import TYPE_CHECKING, Any

from shardwright.sharding.catalog.documents import CACHE_CHUNKS_INDEXES, INDEXES, RANGE_DELETIONS_INDEXES

if TYPE_CHECKING:
    from pymongo import MongoClient


def test_specifications() -> None:
    assert [each.to_specification() for each in INDEXES["chunks"]] == [
        {"key": {"uuid": 1, "min": 1}, "name": "uuid_1_min_1", "unique": True},
        {"key": {"uuid": 1, "shard": 1, "min": 1}, "name": "uuid_1_shard_1_min_1", "unique": True},
        {"key": {"uuid": 1, "lastmod": 1}, "name": "uuid_1_lastmod_1", "unique": True},
    ]


def test_mongod_accepts_the_definitions(mongod: "MongoClient[dict[str, Any]]") -> None:
    database = mongod["catalog_indexes"]
    every = {**INDEXES, "cache.chunks.d.c": CACHE_CHUNKS_INDEXES, "rangeDeletions": RANGE_DELETIONS_INDEXES}
    for name, definitions in every.items():
        collection = name.replace("system.", "")
        wanted = [each.to_specification() for each in definitions]
        database.command({"createIndexes": collection, "indexes": wanted})
        made = {index["name"]: index for index in database[collection].list_indexes()}
        assert made.keys() == {"_id_"} | {each["name"] for each in wanted}
        assert all(bool(made[each["name"]].get("unique")) == bool(each.get("unique")) for each in wanted)
    mongod.drop_database("catalog_indexes")
