"""Indexes that differ between the shards that own a collection."""

from shardwright.sharding.catalog.consistency import index_differences

ID = {"v": 2, "key": {"_id": 1}, "name": "_id_"}


def test_equal_indexes_in_any_order_are_consistent() -> None:
    a = {"v": 2, "key": {"a": 1}, "name": "a_1"}
    assert not index_differences("d.c", {"s1": [ID, a], "s2": [a, ID]})
    assert not index_differences("d.c", {})


def test_a_missing_and_an_unequal_index_are_found() -> None:
    a, b = ({"v": 2, "key": {name: 1}, "name": f"{name}_1"} for name in "ab")
    found = index_differences("d.c", {"s1": [ID, a, {**b, "hidden": True}], "s2": [ID, b]})
    assert [each["type"] for each in found] == ["InconsistentIndex"] * 2
    assert [each["details"]["info"] for each in found] == [
        {"indexName": "a_1", "missingFromShards": ["s2"], "inconsistentProperties": []},
        {"indexName": "b_1", "missingFromShards": [], "inconsistentProperties": ["hidden"]},
    ]
