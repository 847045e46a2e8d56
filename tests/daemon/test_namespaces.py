"""The namespace of a request in the log of slow operations."""

from typing import Any

import bson
import pytest

import shardwright.configd.commands
import shardwright.shardd.commands  # noqa: F401 - registers the commands
from shardwright.configd.service import ConfigHandler
from shardwright.daemon.command_table import namespace_of
from shardwright.shardd.handler import ShardHandler
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def request(command: dict[str, Any], db: str) -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": db}), request_id=1)))


@pytest.mark.parametrize(
    ("command", "db", "namespace"),
    [
        ({"find": "c"}, "db", "db.c"),
        ({"getMore": bson.Int64(5), "collection": "c"}, "db", "db.c"),
        ({"getMore": bson.Int64(5)}, "db", "db"),
        ({"explain": {"count": "c"}, "verbosity": "queryPlanner"}, "db", "db.c"),
        ({"explain": {}}, "db", "db"),
        ({"aggregate": 1, "pipeline": []}, "db", "db"),
        ({"getLog": "global"}, "admin", "admin"),
        ({"dropDatabase": 1}, "db", "db"),
        ({"split": "db.c"}, "admin", "db.c"),
        ({"addShard": "set/host:1"}, "admin", "admin"),
    ],
)
def test_namespace(command: dict[str, Any], db: str, namespace: str) -> None:
    assert namespace_of(request(command, db), in_full={"split"}, without={"addShard"}) == namespace


@pytest.mark.parametrize(
    ("command", "db", "namespace"),
    [
        ({"find": "chunks"}, "config", "config.chunks"),
        ({"_configsvrCommitChunkSplit": "db.c"}, "admin", "db.c"),
        ({"_configsvrCreateDatabase": "db"}, "admin", "db"),
        ({"_configsvrAddShard": "set/host:1"}, "admin", "admin"),
        ({"_configsvrBalancerStatus": 1}, "admin", "admin"),
    ],
)
def test_namespace_at_a_config_daemon(command: dict[str, Any], db: str, namespace: str) -> None:
    handler = ConfigHandler.__new__(ConfigHandler)  # namespaces do not depend on its other attributes
    assert handler.namespace_of(request(command, db)) == namespace


@pytest.mark.parametrize(
    ("command", "db", "namespace"),
    [
        ({"update": "c"}, "db", "db.c"),
        ({"splitVector": "db.c"}, "admin", "db.c"),
        ({"_shardsvrCreateCollection": "c"}, "db", "db.c"),
        ({"_flushRoutingTableCacheUpdates": "db.c"}, "admin", "db.c"),
        ({"configureFailPoint": "point"}, "admin", "admin"),
    ],
)
def test_namespace_at_a_shard_daemon(command: dict[str, Any], db: str, namespace: str) -> None:
    handler = ShardHandler.__new__(ShardHandler)
    assert handler.namespace_of(request(command, db)) == namespace
