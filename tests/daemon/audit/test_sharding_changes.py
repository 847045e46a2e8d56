"""Audit parameters of commands that change the distribution of data."""

from typing import Any

import pytest

from shardwright.daemon.audit.events import events_of, is_event
from shardwright.daemon.audit.sharding_changes import SHARDING_CHANGES
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from tests.daemon.audit.test_events import request_of

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


@pytest.mark.parametrize("name", SHARDING_CHANGES)
def test_parameters(name: str) -> None:
    command, parameters = EXPECTED[name]
    request = request_of({**command, "$db": "admin", "lsid": {}, "comment": "x"})
    assert is_event(request, name, 0)
    assert events_of(request, name, 0, "admin.$cmd") == [(name, parameters)]


def test_the_names_are_those_of_commands_of_the_router() -> None:
    assert SHARDING_CHANGES.keys() <= {entry.name for entry in ROUTER_COMMANDS}
