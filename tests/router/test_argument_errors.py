"""Every command with an unknown argument, and with a first argument of a wrong type: refused as by a mongod."""

import re
from typing import Any, Final

import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.regex import Regex

from tests.local_cluster import Client
from tests.router.beside_mongod import Command, run

DB: Final = "argument_errors"
MISSING_DB: Final = "argument_errors_missing"

ON_COLLECTION: Final[dict[str, Command]] = {
    **{name: {} for name in ("find", "count", "drop", "create", "listIndexes", "collStats", "validate", "collMod")},
    **{name: {} for name in ("planCacheClear", "planCacheListFilters", "planCacheClearFilters")},
    "insert": {"documents": [{}]},
    "update": {"updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
    "delete": {"deletes": [{"q": {}, "limit": 1}]},
    "distinct": {"key": "a"},
    "findAndModify": {"remove": True},
    "findandmodify": {"remove": True},
    "aggregate": {"pipeline": [], "cursor": {}},
    "createIndexes": {"indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    "dropIndexes": {"index": "a_1"},
    "deleteIndexes": {"index": "a_1"},
    "convertToCapped": {"size": 1000},
    "planCacheSetFilter": {"query": {}, "indexes": [{"a": 1}]},
    "killCursors": {"cursors": []},
    "setIndexCommitQuorum": {"indexNames": ["a_1"], "commitQuorum": 1},
    "mapReduce": {"map": "function() {}", "reduce": "function() {}", "out": {"inline": 1}},
    "mapreduce": {"map": "function() {}", "reduce": "function() {}", "out": {"inline": 1}},
}
FIRST_ARGUMENTS: Final[dict[str, Any]] = {
    **dict.fromkeys(ON_COLLECTION, "c"),
    **{name: [] for name in ("endSessions", "refreshSessions", "killSessions")},
    **dict.fromkeys(("getLog", "clearLog"), "global"),
    "getMore": Int64(5),
    "explain": {"find": "c"},
    "renameCollection": f"{DB}.c",
    "splitVector": f"{DB}.c",
    "logMessage": "text",
    "waitForFailPoint": "failCommand",
    "configureFailPoint": "failCommand",
    "create": "new",
}
OTHER_ARGUMENTS: Final[dict[str, Command]] = {
    **ON_COLLECTION,
    "getMore": {"collection": "c"},
    "renameCollection": {"to": f"{DB}.d"},
    "waitForFailPoint": {"timesEntered": 1_000_000_000, "maxTimeMS": 1},
    "killOp": {"op": 999_999_999},
    "dropConnections": {"hostAndPort": []},
    "configureFailPoint": {"mode": "off"},
}
NOT_COMPARED: Final = frozenset(
    {
        # They end the server, or change it for others.
        *("shutdown", "killAllSessions", "killAllSessionsByPattern", "fsync", "clearLog", "logRotate", "dropDatabase"),
        # A router refuses them with another error, whatever their arguments.
        *("compact", "replSetGetStatus", "setFreeMonitoring", "profile", "flushRouterConfig", "getShardMap"),
        *("mergeChunks", "getShardVersion"),
    }
)


def comparable(router: Client, plain: Client) -> dict[str, str]:
    """The commands that both servers have, with the database to run each on."""
    ours, theirs = (run(client, {"listCommands": 1})["commands"] for client in (router, plain))
    names = ours.keys() & theirs.keys() - NOT_COMPARED
    return {name: "admin" if ours[name]["adminOnly"] else DB for name in sorted(names)}


def error(client: Client, command: Command, db: str) -> tuple[object, object]:
    reply = run(client, command, db)
    return (reply.get("code"), reply.get("errmsg")) if reply["ok"] != 1 else (0, "")


@pytest.fixture(scope="module", autouse=True)
def filled(router: Client, plain: Client) -> None:
    for client in (router, plain):
        client[DB].c.insert_one({"_id": 1, "a": 1})


def test_unknown_arguments(router: Client, plain: Client) -> None:
    differing = {}
    commands = comparable(router, plain)
    assert len(commands) > 80
    for name, db in commands.items():
        command = {name: FIRST_ARGUMENTS.get(name, 1), **OTHER_ARGUMENTS.get(name, {}), "zz": 1}
        ours, theirs = (error(client, command, db) for client in (router, plain))
        if ours != theirs:
            differing[name] = (ours, theirs)
    assert differing == {}


@pytest.mark.parametrize("name", ["endSessions", "refreshSessions", "listCollections", "listIndexes", "collMod"])
def test_unknown_arguments_on_a_database_that_does_not_exist(router: Client, plain: Client, name: str) -> None:
    command = {name: FIRST_ARGUMENTS.get(name, 1), "zz": 1}
    refused = error(router, command, MISSING_DB)
    assert refused[0] == 40415
    assert refused == error(plain, command, MISSING_DB)


LISTING: Final[list[Command]] = [
    {"cursor": 5},
    {"cursor": {"zz": 1}},
    {"cursor": {"batchSize": -1}},
    {"filter": 5},
    {"nameOnly": "x"},
    {"authorizedCollections": 1},
]


@pytest.mark.parametrize("arguments", LISTING, ids=str)
def test_list_collections_of_a_database_that_does_not_exist(router: Client, plain: Client, arguments: Command) -> None:
    command = {"listCollections": 1, **arguments}
    refused = error(router, command, MISSING_DB)
    assert refused == error(plain, command, MISSING_DB)
    assert refused[0] != 0


def test_first_arguments_of_wrong_types(router: Client, plain: Client) -> None:
    differing = []
    wrong_values: list[Any] = [5, None, {}, [], True, Regex("x")]
    for name, db in comparable(router, plain).items():
        for wrong in wrong_values:
            if name == "killSessions" and wrong == []:
                continue  # it is right, and would kill those of the other clients
            command = {name: wrong, **OTHER_ARGUMENTS.get(name, {})}
            ours, theirs = (error(client, command, db) for client in (router, plain))
            if ours != theirs:
                differing.append((command, ours, theirs))
    assert differing == []


MAX_TIMES: Final[list[Any]] = [
    *(-1, -1.5, 1.5, 1 << 31, 1e300, float("nan"), "x", True, None, {}),
    *(Decimal128("-1"), Decimal128("2147483647.6"), Decimal128("NaN")),
]


def test_max_time_ms(router: Client, plain: Client) -> None:
    """Of commands that are right otherwise, and do nothing that matters."""
    names = (
        *("aggregate", "count", "delete", "distinct", "explain", "find", "findAndModify", "getMore", "hello", "insert"),
        *("isMaster", "killCursors", "listCollections", "listIndexes", "ping", "serverStatus", "update"),
    )
    differing = []
    for name in names:
        for value in MAX_TIMES:
            command = {name: FIRST_ARGUMENTS.get(name, 1), **OTHER_ARGUMENTS.get(name, {}), "maxTimeMS": value}
            ours, theirs = (error(client, command, DB) for client in (router, plain))
            if ours != theirs:
                differing.append((command, ours, theirs))
    assert differing == []


TAGS: Final[list[Any]] = [5, None, {}, [], [{}]]
READ_PREFERENCES: Final[list[Any]] = [
    *({"mode": mode} for mode in ("x", 5, None, "nearest")),
    *({"mode": "nearest", "tags": tags} for tags in TAGS),
    *({"mode": "nearest", "maxStalenessSeconds": limit} for limit in ("x", None, 5, -5, 0.5, 1e300, float("nan"))),
    *({"mode": "nearest", "hedge": hedge} for hedge in (5, {}, {"enabled": "x"}, {"enabled": False}, {"zz": 1})),
    {"mode": "primary", "maxStalenessSeconds": 100},
    {"mode": "primary", "tags": [{"a": "b"}]},
    {"mode": "primary", "hedge": {}},
    {"mode": "primary", "hedge": {"enabled": False}},
    *({}, {"zz": 1}, 5, "nearest", None),
]


@pytest.mark.parametrize("name", ["ping", "find", "insert", "listCollections"])
def test_read_preferences(router: Client, plain: Client, name: str) -> None:
    differing = []
    for preference in READ_PREFERENCES:
        command = {name: FIRST_ARGUMENTS.get(name, 1), **OTHER_ARGUMENTS.get(name, {}), "$readPreference": preference}
        ours, theirs = (error(client, command, DB) for client in (router, plain))
        if ours != theirs:
            differing.append((preference, ours, theirs))
    assert differing == []


VIEW_READS: Final[list[Command]] = [
    *({"find": "v", name: 1} for name in ("x", "$x", "pipeline", "cursor", "from", "options", "let")),
    *({"find": "v", name: 1} for name in ("awaitData", "tailable", "returnKey", "readOnce", "noCursorTimeout")),
    *({"find": "v", name: True} for name in ("awaitData", "tailable", "explain", "allowSpeculativeMajorityRead")),
    {"find": "v", "awaitData": False},
    {"find": "v", "awaitData": True, "tailable": True},
    {"find": "v", "awaitData": True, "x": 1},
    {"find": "v", "maxTimeMS": -1},
    *({"count": "v", name: 1} for name in ("x", "limit", "pipeline")),
    *({"distinct": "v", "key": "a", name: 1} for name in ("x", "limit", "pipeline")),
]


def test_reads_of_a_view_of_a_sharded_collection(router: Client, plain: Client) -> None:
    """The router turns them into aggregations, which are refused in other words. An explanation names the shard."""
    router.admin.command("shardCollection", f"{DB}.sharded", key={"_id": 1})
    differing = []
    for client in (router, plain):
        client[DB].sharded.insert_one({"_id": 1, "a": 1})
        client[DB].command("create", "v", viewOn="sharded", pipeline=[])
    for read in VIEW_READS:
        for command in (read, {"explain": read}):
            (code, text), theirs = (error(client, command, DB) for client in (router, plain))
            ours = code, re.sub(r"^Explain command on shard \w+ failed :: caused by :: ", "", str(text))
            if ours != theirs:
                differing.append((command, ours, theirs))
    assert differing == []


READ_CONCERNS: Final[list[Any]] = [
    *({"level": level} for level in ("local", "majority", "snapshot", "linearizable", "available", "unknown", 5)),
    *({}, {"zz": 1}, {"afterClusterTime": 5}, 5, "local"),
]
WITH_READ_CONCERN: Final[list[Command]] = [
    *({name: 1} for name in ("ping", "dbStats", "listCollections", "listDatabases", "usersInfo", "buildInfo")),
    *({name: "c"} for name in ("listIndexes", "collStats", "validate", "planCacheClear")),
    *({name: "c", **ON_COLLECTION[name]} for name in ("insert", "update", "mapReduce", "killCursors", "createIndexes")),
    *({name: "c", **ON_COLLECTION[name]} for name in ("find", "aggregate", "count", "distinct")),
    {"explain": {"find": "c"}},
    {"getMore": Int64(5), "collection": "c"},
]


@pytest.mark.parametrize("command", WITH_READ_CONCERN, ids=lambda command: next(iter(command)))
def test_read_concerns(router: Client, plain: Client, command: Command) -> None:
    db = "admin" if "listDatabases" in command else DB
    differing = []
    for concern in READ_CONCERNS:
        ours, theirs = (error(client, {**command, "readConcern": concern}, db) for client in (router, plain))
        if ours != theirs:
            differing.append((concern, ours, theirs))
    assert differing == []


@pytest.mark.parametrize("wrong", ["x", None, {}, [], True, 2, 1.9, 0], ids=str)
def test_argument_of_drop_database(router: Client, plain: Client, wrong: object) -> None:
    command = {"dropDatabase": wrong}
    assert error(router, command, MISSING_DB) == error(plain, command, MISSING_DB)


@pytest.mark.parametrize("name", ["getShardVersion", "mergeChunks", "split", "moveChunk"])
def test_names_of_sharded_collections(router: Client, name: str) -> None:
    """A mongod checks them alike in ``splitVector``, which it also has."""
    wrong_names: list[Any] = [5, None, {}, Regex("x")]
    for wrong in wrong_names:
        assert error(router, {name: wrong}, "admin") == error(router, {"splitVector": wrong}, "admin")
