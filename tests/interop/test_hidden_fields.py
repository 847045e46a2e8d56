"""Internal fields of replies between servers never reach a client; checked in raw replies of our router."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.interop.sharded import Document, split_parts
from tests.interop.tcp_connection import TcpConnection

INTERNAL = {
    "$configTime",
    "$topologyTime",
    "$configServerState",
    "$gleStats",
    "$oplogQueryData",
    "$replData",
    "lastCommittedOpTime",
    "electionId",
    "opTime",
    "shardVersion",
    "databaseVersion",
    "readOnly",
}

COMMANDS: list[Document] = [
    {"find": "ranged"},
    {"find": "ranged", "filter": {"key": 1}},
    {"find": "ranged", "sort": {"key": 1}, "batchSize": 2},
    {"find": "plain"},
    {"find": "missing"},
    {"aggregate": "ranged", "pipeline": [{"$match": {"key": 1}}], "cursor": {}},
    {"aggregate": "plain", "pipeline": [], "cursor": {}},
    {"count": "ranged"},
    {"distinct": "ranged", "key": "key"},
    {"distinct": "plain", "key": "_id"},
    {"insert": "ranged", "documents": [{"key": -1}]},
    {"insert": "ranged", "documents": [{"key": -2}, {"key": 1000}], "ordered": False},
    {"insert": "ranged", "documents": [{"_id": 1, "key": 1}]},
    {"insert": "plain", "documents": [{"a": 1}]},
    {"update": "ranged", "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]},
    {"update": "ranged", "updates": [{"q": {}, "u": {"$set": {"a": 2}}, "multi": True}]},
    {"delete": "ranged", "deletes": [{"q": {"key": 90}, "limit": 1}]},
    {"findAndModify": "ranged", "query": {"key": 2}, "update": {"$set": {"a": 3}}},
    {"findAndModify": "ranged", "query": {"key": 2}, "update": {"$bad": 1}},
    {"find": "ranged", "filter": {"$bad": 1}},
    {"createIndexes": "ranged", "indexes": [{"key": {"a": 1}, "name": "a"}]},
    {"listIndexes": "ranged"},
    {"listIndexes": "plain"},
    {"listCollections": 1},
    {"collStats": "ranged"},
    {"dbStats": 1},
    {"validate": "plain"},
    {"explain": {"find": "ranged"}},
    {"create": "new"},
    {"collMod": "plain", "validationLevel": "off"},
    {"dropIndexes": "ranged", "index": "a"},
    {"drop": "new"},
]

ADMIN_COMMANDS: list[Document] = [
    {"listDatabases": 1},
    {"listShards": 1},
    {"balancerStatus": 1},
    {"addShardToZone": SHARDS[0], "zone": "z"},
    {"removeShardFromZone": SHARDS[0], "zone": "z"},
    {"addShardToZone": "nowhere", "zone": "z"},
    {"find": "system.version"},
]


def _names(value: Any) -> set[str]:  # noqa: ANN401 - any BSON value
    """All field names at any depth, except in documents of users or of the catalog."""
    if isinstance(value, dict):
        inner = [_names(each) for name, each in value.items() if name not in ("cursor", "shards", "raw")]
        raw = [_names(each) for each in value.get("raw", {}).values()]
        return set(value).union(*inner, *raw)
    if isinstance(value, list):
        return set().union(*map(_names, value))
    return set()


@pytest.fixture(scope="module")
def connection(genuine: GenuineCluster) -> Any:  # noqa: ANN401 - a generator
    """A bare connection to the first router."""
    with TcpConnection(genuine.routers[0]) as connected:
        yield connected


@pytest.fixture
def filled(database: Database[Document]) -> str:
    """A database with a sharded collection on both shards and one that is not sharded."""
    split_parts(database)
    database.plain.insert_one({"_id": 1})
    return database.name


def test_replies_name_no_internal_field(connection: TcpConnection, genuine: GenuineCluster, filled: str) -> None:
    # The shards do send such fields, so there is something to hide.
    with TcpConnection(genuine.shards[SHARDS[0]]) as shard:
        assert "lastCommittedOpTime" in shard.command({"ping": 1}, db="admin")
    for db, commands in ((filled, COMMANDS), ("admin", ADMIN_COMMANDS)):
        for command in commands:
            reply = connection.command(command, db=db)
            assert not _names(reply) & INTERNAL, (command, reply)
            assert {"ok", "operationTime", "$clusterTime"} <= set(reply), (command, reply)


def test_replies_to_get_more_name_no_internal_field(connection: TcpConnection, filled: str) -> None:
    for collection, sort in (("ranged", {}), ("ranged", {"key": 1})):
        opened = connection.command({"find": collection, "sort": sort, "batchSize": 3}, db=filled)
        while opened["cursor"]["id"]:
            opened = connection.command({"getMore": opened["cursor"]["id"], "collection": collection}, db=filled)
            assert not _names(opened) & INTERNAL, opened
