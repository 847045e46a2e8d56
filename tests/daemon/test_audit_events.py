"""Audit events: the commands that are recorded, and the recorded parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import bson
import pytest

from shardwright.daemon.audit_events import SHARDING_CHANGES, events_of, is_event
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.wire.message import DocumentSequence, OpMsg, op_msg
from shardwright.wire.request import Request

NS = "shop.orders"
EXPECTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "enableSharding": ({"enableSharding": "shop", "primaryShard": "a"}, {"ns": "shop"}),
    "shardCollection": (
        {"shardCollection": NS, "key": {"k": 1}, "numInitialChunks": 2},
        {"ns": NS, "key": {"k": 1}, "options": {"unique": False}},
    ),
    "refineCollectionShardKey": (
        {"refineCollectionShardKey": NS, "key": {"k": 1, "l": 1}},
        {"ns": NS, "key": {"k": 1, "l": 1}},
    ),
    "addShard": ({"addShard": "s/a:1", "name": "a"}, {"shard": "a", "connectionString": "s/a:1"}),
    "removeShard": ({"removeShard": "a"}, {"shard": "a"}),
    "reshardCollection": (
        {"reshardCollection": NS, "key": {"l": 1}, "unique": False, "numInitialChunks": 2},
        {"ns": NS, "key": {"l": 1}, "unique": False, "numInitialChunks": 2},
    ),
    "abortReshardCollection": ({"abortReshardCollection": NS}, {"ns": NS}),
    "commitReshardCollection": ({"commitReshardCollection": NS}, {"ns": NS}),
    "cleanupReshardCollection": ({"cleanupReshardCollection": NS}, {"ns": NS}),
    "movePrimary": ({"movePrimary": "shop", "to": "b"}, {"ns": "shop", "to": "b"}),
    "moveChunk": (
        {"moveChunk": NS, "find": {"k": 1}, "to": "b", "_waitForDelete": True},
        {"ns": NS, "find": {"k": 1}, "to": "b"},
    ),
    "moveRange": (
        {"moveRange": NS, "min": {"k": 1}, "toShard": "b"},
        {"ns": NS, "min": {"k": 1}, "toShard": "b"},
    ),
    "split": ({"split": NS, "middle": {"k": 1}}, {"ns": NS, "middle": {"k": 1}}),
    "mergeChunks": (
        {"mergeChunks": NS, "bounds": [{"k": 1}, {"k": 2}]},
        {"ns": NS, "bounds": [{"k": 1}, {"k": 2}]},
    ),
    "clearJumboFlag": ({"clearJumboFlag": NS, "find": {"k": 1}}, {"ns": NS, "find": {"k": 1}}),
    "repairShardedCollectionChunksHistory": ({"repairShardedCollectionChunksHistory": NS, "force": True}, {"ns": NS}),
    "addShardToZone": ({"addShardToZone": "a", "zone": "z"}, {"shard": "a", "zone": "z"}),
    "removeShardFromZone": ({"removeShardFromZone": "a", "zone": "z"}, {"shard": "a", "zone": "z"}),
    "updateZoneKeyRange": (
        {"updateZoneKeyRange": NS, "min": {"k": 1}, "max": {"k": 2}, "zone": "z"},
        {"ns": NS, "min": {"k": 1}, "max": {"k": 2}, "zone": "z"},
    ),
    "balancerStart": ({"balancerStart": 1}, {}),
    "balancerStop": ({"balancerStop": 1, "maxTimeMS": 9}, {}),
    "configureCollectionBalancing": (
        {"configureCollectionBalancing": NS, "chunkSize": 2, "enableAutoSplitter": False},
        {"ns": NS, "chunkSize": 2, "enableAutoSplitter": False},
    ),
    "setAllowMigrations": (
        {"setAllowMigrations": NS, "allowMigrations": False},
        {"ns": NS, "allowMigrations": False},
    ),
}


def _request_of(command: Mapping[str, Any], **sequences: Sequence[Mapping[str, Any]]) -> Request:
    sections = b"".join(
        DocumentSequence(name.encode(), b"".join(map(bson.encode, documents))).section()
        for name, documents in sequences.items()
    )
    return Request(OpMsg(op_msg(bson.encode(command), request_id=1, sections=sections)))


@pytest.mark.parametrize(
    ("name", "db", "code", "expected"),
    [
        ("find", "shop", 0, False),
        ("find", "shop", 13, True),
        ("create", "shop", 48, True),
        ("insert", "shop", 0, False),
        ("insert", "admin", 0, True),
    ],
)
def test_whether_it_may_be_an_event(name: str, db: str, code: int, expected: bool) -> None:
    assert is_event(_request_of({name: "c", "$db": db}), name, code) is expected


def test_every_index_is_an_event() -> None:
    indexes = [{"name": "a_1", "key": {"a": 1}}, {"name": "b_1", "key": {"b": 1}}]
    expected = [("createIndex", {"ns": "shop.c", "indexName": each["name"], "indexSpec": each}) for each in indexes]
    command = {"createIndexes": "c", "$db": "shop"}
    assert events_of(_request_of({**command, "indexes": indexes}), "createIndexes", 0, "shop.c") == expected
    # A client may send the array outside of the body.
    assert events_of(_request_of(command, indexes=indexes), "createIndexes", 0, "shop.c") == expected


@pytest.mark.parametrize(("code", "expected"), [(22, []), (13, [("authCheck", {"command": "create"})])])
def test_of_what_cannot_be_read_nothing_is_recorded(code: int, expected: list[Any]) -> None:
    command = {"create": "c", "viewOn": {"flag": True}, "$db": "shop"}
    broken = bson.encode(command).replace(b"flag\0\1", b"flag\0\7")
    assert events_of(Request(OpMsg(op_msg(broken, request_id=1))), "create", code, "shop.c") == expected


def test_users_that_are_inserted_directly_are_recorded_without_secrets() -> None:
    named = {"_id": "shop.eve", "user": "eve", "db": "shop", "roles": [{"role": "root", "db": "admin"}]}
    user = {**named, "credentials": {"SCRAM-SHA-256": {"storedKey": "secret"}}, "other": "secret"}
    expected = [
        (
            "directAuthMutation",
            {
                "document": {**named, "credentials": ["SCRAM-SHA-256"]},
                "ns": "admin.system.users",
                "operation": "insert",
            },
        )
    ]
    command = {"insert": "system.users", "$db": "admin"}
    for request in (_request_of({**command, "documents": [user]}), _request_of(command, documents=[user])):
        assert events_of(request, "insert", 0, "admin.system.users") == expected


@pytest.mark.parametrize(
    ("name", "operation"), [("update", "update"), ("findAndModify", "update"), ("delete", "remove")]
)
def test_of_other_direct_writes_the_collection_is_recorded(name: str, operation: str) -> None:
    namespace = "admin.system.roles"
    request = _request_of({name: "system.roles", "updates": [{"u": {"credentials": "secret"}}], "$db": "admin"})
    expected = [("directAuthMutation", {"ns": namespace, "operation": operation})]
    assert events_of(request, name, 0, namespace) == expected


def test_writes_to_other_collections_are_no_events() -> None:
    request = _request_of({"insert": "c", "documents": [{}], "$db": "admin"})
    assert events_of(request, "insert", 0, "admin.c") == []


def test_of_a_refused_direct_write_the_documents_are_not_recorded() -> None:
    namespace, shown = "admin.system.users", {"insert": "system.users"}
    request = _request_of({**shown, "documents": [{"credentials": "secret"}], "$db": "admin"})
    expected = [("authCheck", {"command": "insert", "ns": namespace, "args": shown})]
    assert events_of(request, "insert", 13, namespace) == expected


@pytest.mark.parametrize("name", SHARDING_CHANGES)
def test_parameters(name: str) -> None:
    command, parameters = EXPECTED[name]
    request = _request_of({**command, "$db": "admin", "lsid": {}, "comment": "x"})
    assert is_event(request, name, 0)
    assert events_of(request, name, 0, "admin.$cmd") == [(name, parameters)]


def test_the_names_are_those_of_commands_of_the_router() -> None:
    assert SHARDING_CHANGES.keys() <= {entry.name for entry in ROUTER_COMMANDS}
