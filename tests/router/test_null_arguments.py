"""Null and other unusual arguments get the results of a mongod, on sharded and unsharded collections."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import pytest

from tests.interop.tcp_connection import TcpConnection
from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import Command
from tests.wire.raw_connection import RawConnection

DB: Final = "null_arguments"

MAP: Final = {"map": "function() { emit(1, 1) }", "reduce": "function(key, values) { return 1 }"}
COMMANDS: Final[dict[str, Command]] = {
    "find": {},
    "aggregate": {"pipeline": [{"$match": {"key": 1}}], "cursor": {}},
    "count": {},
    "distinct": {"key": "key"},
    "insert": {"documents": [{"key": 5}]},
    "update": {"updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]},
    "delete": {"deletes": [{"q": {"key": 7}, "limit": 1}]},
    "findAndModify": {"query": {"key": 1}, "update": {"$set": {"a": 1}}},
    "mapReduce": {**MAP, "out": {"inline": 1}},
    "killCursors": {"cursors": []},
}
ARGUMENTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("lsid", "txnNumber", "autocommit", "startTransaction", "collation", "readConcern")),
    "readConcern of a number": 1,
}

OTHERS: Final[list[Command]] = [
    {"aggregate": "c", **COMMANDS["aggregate"], "lsid": None, "txnNumber": None, "autocommit": None},
    {"mapReduce": "c", **COMMANDS["mapReduce"], "sort": {}},
    {"mapReduce": "c", **COMMANDS["mapReduce"], "sort": None},
    *(
        {"mapReduce": "c", **COMMANDS["mapReduce"], name: None}
        for name in ("map", "reduce", "out", "query", "finalize")
    ),
    *({"mapReduce": "c", **{k: v for k, v in COMMANDS["mapReduce"].items() if k != name}} for name in ("map", "out")),
    {"findAndModify": "c", "query": {"key": {"$foo": 1}}, "remove": True},
    {"findAndModify": "c", "query": {"$foo": 1}, "remove": True},
    {"killCursors": "c", "cursors": None},
    {"insert": "c", "documents": None},
    {"update": "c", "updates": None},
    {"delete": "c", "deletes": None},
    {"dbStats": 1, "scale": None},
    {"hello": 1, "loadBalanced": 1.5},
    {"hello": 1, "loadBalanced": None},
    {"hello": 1, "speculativeAuthenticate": {"$x": 1}},
    {"hello": 1, "speculativeAuthenticate": {}},
    {"hello": 1, "speculativeAuthenticate": None},
    {"hello": 1, "speculativeAuthenticate": {"authenticate": 1}},
]


@pytest.fixture(scope="module", autouse=True)
def filled(router: Client, plain: Client) -> None:
    router.admin.command("shardCollection", f"{DB}.sharded", key={"key": 1})
    for client in (router, plain):
        for name in ("sharded", "unsharded"):
            client[DB][name].insert_one({"_id": 1, "key": 1})


def outcomes(cluster: RunningCluster, process: str, commands: Sequence[Command]) -> list[tuple[object, ...]]:
    """The outcomes on a process, without a driver, which would replace or refuse some of the arguments."""
    address = cluster.address(process)
    with closing(RawConnection(address) if "/" in address else TcpConnection(address)) as connection:
        replies = [connection.command(each, db=DB) for each in commands]
    return [(reply["ok"], reply.get("code"), reply.get("errmsg")) for reply in replies]


@pytest.mark.parametrize("collection", ["sharded", "unsharded"])
def test_same_as_a_mongod(cluster: RunningCluster, collection: str) -> None:
    commands = [
        {name: collection, **others, argument.split()[0]: value}
        for name, others in COMMANDS.items()
        for argument, value in ARGUMENTS.items()
    ]
    commands += [{name: collection if value == "c" else value for name, value in each.items()} for each in OTHERS]
    compared = zip(
        commands, outcomes(cluster, "router.0", commands), outcomes(cluster, "config.0.mongod", commands), strict=True
    )
    assert [each for each in compared if each[1] != each[2]] == []
