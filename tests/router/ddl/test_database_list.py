"""``listDatabases`` of a cluster, merged from the replies of all shards and the config servers."""

import bson

from shardwright.router.ddl.merged_replies import merge_database_lists


def sized(**sizes: int) -> list[dict[str, object]]:
    return [{"name": name, "sizeOnDisk": bson.Int64(size), "empty": size == 1} for name, size in sizes.items()]


LISTS = {
    "a": sized(admin=100, config=10, local=1000, shop=3_000_000, only_a=7),
    "b": sized(admin=200, config=20, local=1000, shop=2_000_000),
    "config": sized(admin=5, config=400, local=1000, stray=9),
}


def test_sizes_in_all_and_by_shard() -> None:
    merged = merge_database_lists(LISTS)
    assert merged == {
        "databases": [
            {"name": "admin", "sizeOnDisk": 5, "empty": False, "shards": {"config": 5}},
            {"name": "config", "sizeOnDisk": 430, "empty": False, "shards": {"a": 10, "b": 20, "config": 400}},
            {"name": "only_a", "sizeOnDisk": 7, "empty": False, "shards": {"a": 7}},
            {"name": "shop", "sizeOnDisk": 5_000_000, "empty": False, "shards": {"a": 3_000_000, "b": 2_000_000}},
        ],
        "totalSize": 5_000_442,
        "totalSizeMb": 4,
    }
    assert isinstance(merged["totalSize"], bson.Int64)
    assert isinstance(merged["databases"][0]["sizeOnDisk"], bson.Int64)


def test_names_only() -> None:
    assert merge_database_lists(LISTS, names_only=True) == {
        "databases": [{"name": "admin"}, {"name": "config"}, {"name": "only_a"}, {"name": "shop"}]
    }


def test_database_that_is_empty_everywhere() -> None:
    merged = merge_database_lists({"a": sized(shop=1), "b": sized(shop=1), "config": []})
    assert merged["databases"] == [{"name": "shop", "sizeOnDisk": 1, "empty": True, "shards": {"a": 1, "b": 1}}]


def test_empty_database_adds_nothing_to_one_that_is_not() -> None:
    merged = merge_database_lists({"a": sized(shop=1), "b": sized(shop=50), "config": []})
    assert merged["databases"][0]["sizeOnDisk"] == 50
    assert merged["databases"][0]["empty"] is False
