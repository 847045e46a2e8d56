"""Views on real shards: run where that is right, handed to the router where it is not."""

from typing import Any

import pytest

from sharding.versions import UNSHARDED
from tests.shardd.router_stand_in import ShardedNamespace


def unsharded(sharded: ShardedNamespace, command: dict[str, Any]) -> dict[str, Any]:
    versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": sharded.database_version}
    return sharded.run({**command, **versions})


@pytest.mark.parametrize(
    "read",
    [
        {"find": "outer"},
        {"aggregate": "outer", "pipeline": [], "cursor": {}},
        {"count": "outer"},
        {"distinct": "outer", "key": "b"},
    ],
)
def test_a_view_on_a_sharded_collection_is_for_the_router(ranged: ShardedNamespace, read: dict[str, Any]) -> None:
    inner, outer = [{"$match": {"b": 1}}], [{"$project": {"b": 1}}]
    for view in ({"create": "inner", "viewOn": "c", "pipeline": inner},):
        ranged.run({**view, "databaseVersion": ranged.database_version})
    assert unsharded(ranged, {"find": "outer"})["cursor"]["firstBatch"] == []
    ranged.run({"create": "outer", "viewOn": "inner", "pipeline": outer, "databaseVersion": ranged.database_version})
    reply = unsharded(ranged, read)
    assert (reply["code"], reply["codeName"]) == (169, "CommandOnShardedViewNotSupportedOnMongod")
    assert reply["resolvedView"] == {
        "ns": ranged.namespace,
        "pipeline": [*inner, *outer],
        "collation": {"locale": "simple"},
    }


def test_a_view_on_an_unsharded_collection_is_run(ranged: ShardedNamespace) -> None:
    unsharded(ranged, {"insert": "u", "documents": [{"_id": 1, "b": 1}, {"_id": 2}]})
    ranged.run({"create": "view", "viewOn": "u", "pipeline": [{"$match": {"b": 1}}]})
    assert unsharded(ranged, {"find": "view"})["cursor"]["firstBatch"] == [{"_id": 1, "b": 1}]


def test_a_view_that_changes_is_noticed(ranged: ShardedNamespace) -> None:
    unsharded(ranged, {"insert": "u", "documents": [{"_id": 1}]})
    ranged.run({"create": "view", "viewOn": "u", "pipeline": []})
    assert unsharded(ranged, {"count": "view"})["n"] == 1
    ranged.run({"collMod": "view", "viewOn": "c", "pipeline": [], "databaseVersion": ranged.database_version})
    assert unsharded(ranged, {"count": "view"})["code"] == 169
