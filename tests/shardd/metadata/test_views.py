"""Views on real shards: run on the shard where that is right, and otherwise left to the router."""

from typing import Any

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.rawbson import INT32, OBJECT, STRING, element, from_elements, raw_document
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
def test_a_view_on_a_sharded_collection_is_left_to_the_router(ranged: ShardedNamespace, read: dict[str, Any]) -> None:
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


def test_a_changed_view_is_noticed(ranged: ShardedNamespace) -> None:
    unsharded(ranged, {"insert": "u", "documents": [{"_id": 1}]})
    ranged.run({"create": "view", "viewOn": "u", "pipeline": []})
    assert unsharded(ranged, {"count": "view"})["n"] == 1
    ranged.run({"collMod": "view", "viewOn": "c", "pipeline": [], "databaseVersion": ranged.database_version})
    assert unsharded(ranged, {"count": "view"})["code"] == 169


VERBATIM = from_elements(
    element(b"b", INT32, bytes(4)) * 2 + element(b"c", STRING, b"\x03\0\0\0\xff\xfe\0")  # no UTF-8
)


@pytest.mark.parametrize("is_changed", [False, True])
def test_definitions_are_forwarded_unchanged(ranged: ShardedNamespace, is_changed: bool) -> None:
    stage = raw_document(from_elements(element(b"$match", OBJECT, VERBATIM)))
    definition = {"viewOn": "c", "pipeline": [stage], "databaseVersion": ranged.database_version}
    if is_changed:
        ranged.run({"create": "view", "viewOn": "c", "pipeline": []})
        assert ranged.run({"_shardsvrCollMod": "view", **definition})["ok"]
    else:
        assert ranged.run({"create": "view", **definition})["ok"]
    client = ranged.cluster.kept_client(ranged.cluster.shards["sh0"].members[0])
    versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": ranged.database_version}
    options = CodecOptions(document_class=RawBSONDocument)
    reply = client[ranged.db].command({"find": "view", **versions}, check=False, codec_options=options)
    assert reply["code"] == 169
    assert VERBATIM in reply.raw
