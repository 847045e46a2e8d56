"""Commands that name a collection by its UUID too, through a router, before genuine servers and before our daemons."""

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from bson.binary import Binary
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import SHARDS
from tests.local_cluster import Client

DB: Final = "by_uuid"
UNKNOWN: Final = Binary.from_uuid(UUID(int=7, version=4))
MISMATCH: Final = {"code": ErrorCode.CollectionUUIDMismatch, "errmsg": "Collection UUID does not match that specified"}
OF_FIND: Final = "Encountered non-retryable error during query :: caused by :: "

INDEX: Final = {"key": {"x": 1}, "name": "x_1"}


def of_collections(name: str) -> list[dict[str, Any]]:
    return [
        {"find": name},
        {"aggregate": name, "pipeline": [], "cursor": {}},
        {"insert": name, "documents": [{"a": 1}]},
        {"update": name, "updates": [{"q": {"a": 1}, "u": {"$set": {"x": 1}}}]},
        {"update": name, "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}]},
        {"delete": name, "deletes": [{"q": {"a": 1}, "limit": 0}]},
        {"drop": name},
        {"collMod": name, "validator": {}},
        {"createIndexes": name, "indexes": [INDEX]},
        {"dropIndexes": name, "index": "x_1"},
    ]


def of_admin(name: str) -> list[dict[str, Any]]:
    namespace = f"{DB}.{name}"
    return [
        {"renameCollection": namespace, "to": f"{DB}.renamed"},
        {"refineCollectionShardKey": namespace, "key": {"a": 1, "b": 1}},
        {"reshardCollection": namespace, "key": {"b": 1}},
        {"shardCollection": namespace, "key": {"a": 1}},
    ]


@pytest.fixture(scope="module")
def each_client(client: Client, cluster_client: Client) -> Iterator[tuple[Client, Client]]:
    """Clients of a genuine and of our cluster: ``s`` is sharded and on the second shard only, ``u`` unsharded."""
    for each, (first, second) in ((client, SHARDS), (cluster_client, ("shard0", "shard1"))):
        each.admin.command("enableSharding", DB, primaryShard=first)
        each.admin.command("shardCollection", f"{DB}.s", key={"a": 1})
        each.admin.command("moveChunk", f"{DB}.s", find={"a": 0}, to=second)
        each[DB].create_collection("u")
    yield client, cluster_client
    for each in (client, cluster_client):
        each.drop_database(DB)


@pytest.fixture(scope="module")
def cluster_client(own_inside: object, cluster: Any) -> Iterator[Client]:  # noqa: ANN401 - the fixture's cluster
    with cluster.direct("router.0") as connected:
        yield connected


def uuid_of(client: Client, name: str) -> Binary:
    [found] = client[DB].list_collections(filter={"name": name})
    uuid: Binary = found["info"]["uuid"]
    return uuid


def refusal(client: Client, db: str, command: dict[str, Any], uuid: Binary) -> dict[str, Any]:
    """The error of a command, or of its only statement, without what varies."""
    try:
        reply = client[db].command({**command, "collectionUUID": uuid})
    except OperationFailure as failure:
        reply = dict(failure.details or {})
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    kept = {name: error.get(name) for name in ("code", "errmsg", "db", "expectedCollection", "actualCollection")}
    assert error.get("collectionUUID") == uuid, error
    return kept


@pytest.mark.parametrize(("name", "other"), [("s", "u"), ("u", "s"), ("missing", "s"), ("s", None)])
def test_a_mismatch_names_the_collection_that_has_the_uuid(
    each_client: tuple[Client, Client], name: str, other: str | None
) -> None:
    expected = {**MISMATCH, "db": DB, "expectedCollection": name, "actualCollection": other}
    for client in each_client:
        uuid = UNKNOWN if other is None else uuid_of(client, other)
        for command in of_collections(name):
            error = refusal(client, DB, command, uuid)
            error["errmsg"] = error["errmsg"].removeprefix(OF_FIND)
            assert error == expected, (client, command)
    own = each_client[1]
    uuid = UNKNOWN if other is None else uuid_of(own, other)
    for command in of_admin(name)[(1 if name == "missing" else 0) :]:
        assert refusal(own, "admin", command, uuid) == expected, command
    # The genuine config server is asked by a command of our router just the same.
    for command in of_admin(name)[1:]:
        genuine = each_client[0]
        uuid = UNKNOWN if other is None else uuid_of(genuine, other)
        assert refusal(genuine, "admin", command, uuid) == expected, command


def test_a_match_is_executed(each_client: tuple[Client, Client]) -> None:
    for client in each_client:
        database = client[DB]
        for name in ("s", "u"):
            uuid = uuid_of(client, name)
            for command in of_collections(name):
                if "drop" not in command and "dropIndexes" not in command:
                    assert "writeErrors" not in database.command({**command, "collectionUUID": uuid}), command
            database.command({"dropIndexes": name, "index": "x_1", "collectionUUID": uuid})
            renaming = {"renameCollection": f"{DB}.{name}", "to": f"{DB}.{name}2", "collectionUUID": uuid}
            client.admin.command(renaming)
            database.create_collection("target")
            target = uuid_of(client, "target")
            renaming = {"renameCollection": f"{DB}.{name}2", "to": f"{DB}.target", "dropTarget": uuid}
            with pytest.raises(OperationFailure) as mismatch:
                client.admin.command(renaming)
            assert mismatch.value.code == ErrorCode.CollectionUUIDMismatch
            client.admin.command({**renaming, "dropTarget": target})
            database.command({"drop": "target", "collectionUUID": uuid})
            assert f"{name}2" not in database.list_collection_names()
    stories = [
        [
            each["ns"]
            for each in client.config.changelog.find({"what": "renameCollection.metadata", "ns": {"$regex": DB}})
        ]
        for client in each_client
    ]
    of_sharded = [[each for each in story if "renamed source" in each] for story in stories]
    assert of_sharded[0] == of_sharded[1] != []
