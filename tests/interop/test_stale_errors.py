"""Replies to versioned commands are the same from a genuine shard server and from ours."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tests.interop.comparison import assert_same
from tests.interop.deployment import HIGH, LOW, NO_CHUNKS, UNSHARDED, Deployment, Document

Both = tuple[Deployment, Deployment]

DB: Final = "interop_stale"
NAMESPACE: Final = f"{DB}.ranged"

COMMANDS: Final[dict[str, Document]] = {
    "find": {"find": "ranged", "filter": {}},
    "count": {"count": "ranged"},
    "distinct": {"distinct": "ranged", "key": "key"},
    "aggregate": {"aggregate": "ranged", "pipeline": [], "cursor": {}},
    "findAndModify": {"findAndModify": "ranged", "query": {"key": -1}, "update": {"$set": {"a": 1}}},
    "insert": {"insert": "ranged", "documents": [{"key": -2}, {"key": -3}]},
    "insert unordered": {"insert": "ranged", "documents": [{"key": -2}, {"key": -3}], "ordered": False},
    "update": {"update": "ranged", "updates": [{"q": {"key": -1}, "u": {"$set": {"a": 1}}}]},
    "update unordered": {
        "update": "ranged",
        "updates": [{"q": {"key": key}, "u": {"$set": {"a": 1}}} for key in (-1, -2)],
        "ordered": False,
    },
    "delete": {"delete": "ranged", "deletes": [{"q": {"key": -1}, "limit": 1}]},
    "createIndexes": {"createIndexes": "ranged", "indexes": [{"key": {"a": 1}, "name": "a"}]},
    "listIndexes": {"listIndexes": "ranged"},
}


def _right(deployment: Deployment) -> Document:
    return deployment.shard_version(NAMESPACE, 0)


def _at(deployment: Deployment, seconds: int) -> Document:
    """The matching version of an incarnation created some time after or before the real one."""
    right = _right(deployment)
    return {**right, "t": Timestamp(right["t"].time + seconds, 1)}


MISMATCHES: Final[dict[str, Callable[[Deployment], Any]]] = {
    "unsharded": lambda _: UNSHARDED,
    "older": lambda deployment: deployment.version(NAMESPACE, Timestamp(1, 2)),
    "newer": lambda deployment: deployment.version(NAMESPACE, Timestamp(9, 0)),
    "no chunks": lambda deployment: deployment.version(NAMESPACE, NO_CHUNKS),
    "earlier incarnation": lambda deployment: _at(deployment, -100),
    "later incarnation": lambda deployment: _at(deployment, 100),
}
ACCEPTED: Final[dict[str, Callable[[Deployment], Any]]] = {
    "equal": _right,
    "another minor version": lambda deployment: deployment.version(NAMESPACE, Timestamp(2, 77)),
    "another epoch": lambda deployment: {**_right(deployment), "e": ObjectId()},
    "array": lambda deployment: [_right(deployment)[field] for field in ("v", "e", "t")],
}


@pytest.fixture(scope="module")
def placed(both: Both) -> Both:
    """Both clusters with an empty collection: the keys below 0 on shard 0 at 2|1, the others on shard 1 at 2|0."""
    for deployment in both:
        deployment.shard_collection(NAMESPACE, {"key": 1})
        deployment.split(NAMESPACE, {"key": LOW}, {"key": HIGH}, {"key": 0})
        assert deployment.move(NAMESPACE, 1, min={"key": 0}) == {"ok": 1.0}
    return both


@pytest.mark.parametrize("version", MISMATCHES)
@pytest.mark.parametrize("name", COMMANDS)
def test_stale_shard_version(placed: Both, name: str, version: str) -> None:
    def ask(deployment: Deployment) -> Document:
        return deployment.on_shard(0, {**COMMANDS[name], "shardVersion": MISMATCHES[version](deployment)}, db=DB)

    reply = assert_same(placed, ask)
    # The replies are not equal just because neither checked: nothing was executed.
    assert reply.get("code") == 13388 or reply["writeErrors"][0]["code"] == 13388


@pytest.mark.parametrize("version", ACCEPTED)
@pytest.mark.parametrize("name", ["find", "count", "delete"])
def test_matching_shard_version(placed: Both, name: str, version: str) -> None:
    def ask(deployment: Deployment) -> Document:
        return deployment.on_shard(0, {**COMMANDS[name], "shardVersion": ACCEPTED[version](deployment)}, db=DB)

    assert assert_same(placed, ask)["ok"]


@pytest.mark.parametrize("version", ["no chunks", "older"])
def test_shard_that_gained_its_first_chunk(placed: Both, version: str) -> None:
    def ask(deployment: Deployment) -> Document:
        return deployment.on_shard(1, {"find": "ranged", "shardVersion": MISMATCHES[version](deployment)}, db=DB)

    assert assert_same(placed, ask)["code"] == 13388


DATABASE_VERSIONS: Final[dict[str, Any]] = {
    "equal": lambda version: version,
    "older": lambda version: {**version, "timestamp": Timestamp(version["timestamp"].time - 5, 1)},
    "newer": lambda version: {**version, "timestamp": Timestamp(version["timestamp"].time + 5, 1)},
    "moved since": lambda version: {**version, "lastMod": 5},
    "another uuid": lambda version: {**version, "uuid": Binary(b"5" * 16, 4)},
    "without timestamp": lambda version: {name: version[name] for name in ("uuid", "lastMod")},
}


@pytest.mark.parametrize("version", DATABASE_VERSIONS)
@pytest.mark.parametrize("name", ["find", "aggregate", "insert unordered", "update", "findAndModify", "createIndexes"])
def test_database_version(placed: Both, name: str, version: str) -> None:
    command = dict(COMMANDS[name])
    command[next(iter(command))] = "plain"
    if (name, version) == ("createIndexes", "equal"):
        command["indexes"] = [{"key": {"_id": 1}, "name": "_id_"}]

    def ask(deployment: Deployment) -> Document:
        sent = DATABASE_VERSIONS[version](deployment.create_database(DB))
        versions = {"shardVersion": UNSHARDED, "databaseVersion": sent}
        reply = deployment.on_shard(0, {**command, **versions}, db=DB)
        return {field: value for field, value in reply.items() if field != "commitQuorum"}

    assert_same(placed, ask)


def test_database_of_another_shard(placed: Both) -> None:
    def ask(deployment: Deployment) -> Document:
        versions = {"shardVersion": UNSHARDED, "databaseVersion": deployment.create_database(DB)}
        return deployment.on_shard(1, {"find": "plain", **versions}, db=DB)

    assert_same(placed, ask)


@pytest.mark.parametrize("shard", [0, 1])
def test_metadata_of_shards(placed: Both, shard: int) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        on_shard, local = deployment.on_shard, deployment.shards[shard].config
        return [
            on_shard(shard, {"_flushRoutingTableCacheUpdates": NAMESPACE}),
            local["cache.collections"].find_one({"_id": NAMESPACE}),
            list(local[f"cache.chunks.{NAMESPACE}"].find().sort("_id")),
            list(local[f"cache.chunks.{NAMESPACE}"].list_indexes()),
            on_shard(shard, {"_flushDatabaseCacheUpdates": DB}),
            local["cache.databases"].find_one({"_id": DB}),
            deployment.shards[shard].admin["system.version"].find_one({"_id": "shardIdentity"}),
            on_shard(shard, {"getShardVersion": NAMESPACE}),
            on_shard(shard, {"getShardVersion": NAMESPACE, "fullMetadata": True}),
            on_shard(shard, {"getDatabaseVersion": DB}),
            on_shard(shard, {"getDatabaseVersion": "interop_unknown"}),
        ]

    assert_same(placed, ask)


# Malformed versions are refused by both; where the numbers differ it is because a genuine server notices them in
# different layers, and no router sends them.
MALFORMED: Final[dict[str, tuple[Any, int, int]]] = {
    "a pair": ([Timestamp(2, 0), ObjectId()], 14, 14),
    "a string": ("x", 10065, 14),
    "empty": ({}, 2, 14),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_shard_version(placed: Both, name: str) -> None:
    value, *codes = MALFORMED[name]
    found = [each.on_shard(0, {"find": "ranged", "shardVersion": value}, db=DB)["code"] for each in placed]
    assert found == codes
