"""Replies in which a router differs easily: explain, null queries, dropped collections, indexes, counters."""

import re
from functools import partial
from typing import Any, Final

import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.timestamp import Timestamp

from tests.integration.sharded import shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import Command, run

DB: Final = "answers_as_mongos"
NUMBERS: Final = range(-5, 5)


@pytest.fixture(scope="module", autouse=True)
def filled(router: Client, plain: Client) -> None:
    """``sharded``, which is on both shards of the router's cluster, and the same documents on the mongod."""
    shard_by_range(router[DB], "sharded", key="k", split_at=0)
    for client in (router, plain):
        client[DB].sharded.insert_many({"_id": number, "k": number, "a": number % 3} for number in NUMBERS)


EXPLAINED: Final[list[Command]] = [
    {"find": "sharded", "$db": "other"},
    {"find": "sharded", "$db": DB},
    {"count": "sharded", "$db": 5},
    {"explain": {"find": "sharded"}},
    {"ping": 1},
    {"insert": "sharded", "documents": [{}]},
    {},
]


@pytest.mark.parametrize("explained", [*EXPLAINED, 5], ids=str)
def test_what_cannot_be_explained(router: Client, plain: Client, explained: object) -> None:
    command = {"explain": explained}
    refused = run(router, command, DB)
    assert refused["ok"] == 0.0
    assert refused == run(plain, command, DB)


@pytest.mark.parametrize("verbosity", ["queryPlanner", "executionStats"])
def test_explain_on_a_database_that_does_not_exist(router: Client, verbosity: str) -> None:
    missing = f"{DB}_missing"
    for inner in ({"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "a"}):
        refused = run(router, {"explain": inner, "verbosity": verbosity}, missing)
        assert (refused["code"], refused["errmsg"]) == (26, f"database {missing} not found")


@pytest.mark.parametrize("command", [{"distinct": "sharded", "key": "a"}, {"count": "sharded"}], ids=str)
def test_null_query(router: Client, plain: Client, command: Command) -> None:
    ours, theirs = (run(client, {**command, "query": None}, DB) for client in (router, plain))
    ours.pop("shards", None)
    assert ours["ok"] == 1.0
    assert ours == theirs


@pytest.mark.parametrize("sort", [{}, {"k": 1}])
def test_cursor_of_a_collection_that_is_dropped_everywhere(router: Client, sort: Command) -> None:
    """It fails once everything has been returned that had been read before."""
    collection = shard_by_range(router[DB], "dropped", key="k", split_at=0)
    collection.insert_many({"k": number} for number in range(-50, 50))
    cursor = run(router, {"find": "dropped", "sort": sort, "batchSize": 2}, DB)["cursor"]["id"]
    collection.drop()
    more = {"getMore": Int64(cursor), "collection": "dropped"}
    replies = [run(router, more, DB)]
    while replies[-1]["ok"]:
        assert replies[-1]["cursor"]["nextBatch"]
        assert replies[-1]["cursor"]["id"] == cursor
        replies.append(run(router, more, DB))
    assert replies[-1]["codeName"] == "QueryPlanKilled"
    assert replies[-1]["errmsg"].startswith("collection dropped. UUID")


INDEXES: Final[list[Command]] = [
    {"key": {"$**": 1}, "name": "wildcard"},
    {"key": {"place": "2dsphere"}, "name": "geo"},
    {"key": {"words": "text"}, "name": "words"},
    {"key": {"time": 1}, "name": "ttl", "expireAfterSeconds": 100},
    {"key": {"a": "hashed"}, "name": "hashed"},
]


def test_indexes_of_all_kinds_on_all_shards(cluster: RunningCluster, router: Client) -> None:
    shards = set(cluster.shards.values())
    made = run(router, {"createIndexes": "sharded", "indexes": INDEXES}, DB)
    assert {name: reply["numIndexesAfter"] for name, reply in made["raw"].items()} == dict.fromkeys(shards, 7)
    changed = run(router, {"collMod": "sharded", "index": {"name": "ttl", "expireAfterSeconds": 50}}, DB)
    assert {name: reply["expireAfterSeconds_new"] for name, reply in changed["raw"].items()} == dict.fromkeys(
        shards, 50
    )
    for wrong in ({"key": {"a": 1}, "name": "wrong", "unknown": 1}, {"key": {"a": 1}, "name": "u", "unique": True}):
        refused = run(router, {"createIndexes": "sharded", "indexes": [wrong]}, DB)
        [error] = {(reply["code"], reply["errmsg"]) for reply in refused["raw"].values()}
        assert (refused["code"], refused["errmsg"]) == error
    dropped = run(router, {"dropIndexes": "sharded", "index": [each["name"] for each in INDEXES]}, DB)
    assert {name: reply["nIndexesWas"] for name, reply in dropped["raw"].items()} == dict.fromkeys(shards, 7)
    assert len(list(router[DB].sharded.list_indexes())) == 2


@pytest.mark.parametrize("result", [{"_id": 1, "k": 1}, {"_id": 2, "k": 1}, {"_id": 1, "k": 2}], ids=str)
@pytest.mark.parametrize("on", ["k", "_id"])
@pytest.mark.parametrize("matched", ["fail", "replace"])
def test_results_of_merge_that_exist(router: Client, plain: Client, matched: str, on: str, result: Command) -> None:
    """The text says whether the fields of ``on`` belong to another document."""
    target = "by_id" if on == "_id" else "by_k"
    router.admin.command("shardCollection", f"{DB}.{target}", key={on: 1}, unique=True)
    if on == "k":
        plain[DB][target].create_index(on, unique=True)
    for client in (router, plain):
        client[DB][target].delete_many({})
        client[DB][target].insert_one({"_id": 1, "k": 1})
        client[DB].results.drop()
        client[DB].results.insert_one(result)
    stage = {"$merge": {"into": target, "on": on, "whenMatched": matched}}
    command = {"aggregate": "results", "pipeline": [stage], "cursor": {}}
    ours, theirs = (run(client, command, DB) for client in (router, plain))
    assert ours == theirs


NO_BOOLEANS: Final[list[Any]] = ["x", 5, 0, None, {}, Decimal128("1")]
AGGREGATIONS: Final[list[Command]] = [
    *({"aggregate": "sharded", "pipeline": [], "explain": wrong} for wrong in NO_BOOLEANS),
    *({"aggregate": number, "pipeline": [], "cursor": {}} for number in (Decimal128("1"), Decimal128("1.0"), 1.0)),
    *({"aggregate": number, "pipeline": [{"$documents": []}]} for number in (Decimal128("2"), Decimal128("NaN"), 1.5)),
    {"aggregate": Decimal128("1"), "pipeline": [{"$documents": []}]},
    {"aggregate": "sharded", "pipeline": [{"$match": {"_id": "none"}}], "explain": False},
]


@pytest.mark.parametrize("command", AGGREGATIONS, ids=str)
@pytest.mark.parametrize("cursor", [{"cursor": {}}, {}], ids=str)
def test_arguments_of_aggregate(router: Client, plain: Client, command: Command, cursor: Command) -> None:
    ours, theirs = (run(client, {**command, **cursor}, DB) for client in (router, plain))
    for reply in (ours, theirs):
        reply.pop("cursor", None)
    assert ours == theirs


@pytest.mark.parametrize("stage", [{"$project": {"_id": 0}}, {"$set": {"_id": {"a": "x"}}}], ids=str)
def test_events_without_their_tokens(router: Client, plain: Client, stage: Command) -> None:
    def refused(client: Client) -> Command:
        stream = run(client, {"aggregate": "watched", "pipeline": [{"$changeStream": {}}, stage], "cursor": {}}, DB)
        client[DB].watched.insert_one({})
        more = {"getMore": Int64(stream["cursor"]["id"]), "collection": "watched", "maxTimeMS": 1000}
        reply = eventually(lambda: next((each for each in [run(client, more, DB)] if not each["ok"]), None))
        # A mongos has no executor of its own.
        text = reply["errmsg"].removeprefix("Executor error during getMore :: caused by :: ")
        return {**reply, "errmsg": re.sub('"[0-9A-F]+"', "TOKEN", text)}

    for client in (router, plain):
        client[DB].watched.insert_one({})
    assert refused(router) == refused(plain)


@pytest.mark.parametrize("read", [{"find": "sharded"}, {"aggregate": "sharded", "pipeline": [], "cursor": {}}], ids=str)
def test_snapshot_at_a_time_and_after_one(router: Client, plain: Client, read: Command) -> None:
    time = Timestamp(5, 1)
    concern = {"level": "snapshot", "atClusterTime": time, "afterClusterTime": time}
    refused = run(router, {**read, "readConcern": concern}, DB)
    assert refused["code"] == 72
    assert refused == run(plain, {**read, "readConcern": concern}, DB)


@pytest.mark.parametrize("root", ["", "fs"])
def test_md5_of_a_file_that_does_not_exist(router: Client, plain: Client, root: str) -> None:
    ours, theirs = (run(client, {"filemd5": "none", "root": root}, DB) for client in (router, plain))
    assert ours == theirs


SAME_SECTIONS: Final = (
    *("asserts", "connections", "extra_info", "logicalSessionRecordCache", "mem", "network", "opcounters"),
    "metrics.cursor.open",
)
"""Parts of ``serverStatus`` in which the router has fields that a mongod has, too."""


@pytest.mark.parametrize("path", SAME_SECTIONS)
def test_fields_of_server_status(router: Client, plain: Client, path: str) -> None:
    ours, theirs = (run(client, {"serverStatus": 1}) for client in (router, plain))
    for name in path.split("."):
        ours, theirs = ours[name], theirs[name]
    of_mongos = {"multiTarget", "singleTarget"}
    assert {name: type(value) for name, value in ours.items() if name not in of_mongos} == {
        name: type(theirs.get(name)) for name in ours if name not in of_mongos
    }


def test_connections_that_wait_for_changes_of_the_topology(router: Client, plain: Client) -> None:
    def waiting(client: Client) -> dict[str, int] | None:
        """The counts of connections; None until the client's monitor waits for a change."""
        counts: dict[str, int] = run(client, {"serverStatus": 1})["connections"]
        streamed = counts["exhaustHello"] + counts["exhaustIsMaster"]
        return counts if counts["awaitingTopologyChanges"] and streamed else None

    # A driver's monitor does.
    ours, theirs = (eventually(partial(waiting, client)) for client in (router, plain))
    assert list(ours) == list(theirs)
    assert ours["threaded"] == ours["current"]


def test_fields_of_server_status_that_only_routers_have(router: Client) -> None:
    status = run(router, {"serverStatus": 1})
    assert status["process"] == "mongos"
    sharding = status["sharding"]
    assert list(sharding) == ["configsvrConnectionString", "lastSeenConfigServerOpTime", "maxChunkSizeInBytes"]
    assert sharding["maxChunkSizeInBytes"] == 128 << 20
    assert sharding["lastSeenConfigServerOpTime"]["ts"] > Timestamp(1, 1)
    assert sharding["lastSeenConfigServerOpTime"]["t"] == -1
    statistics = status["shardingStatistics"]
    assert list(statistics) == ["numHostsTargeted", "catalogCache"]
    assert list(statistics["numHostsTargeted"]) == ["find", "insert", "update", "delete", "aggregate"]
    cache = statistics["catalogCache"]
    assert list(cache) == [
        *("numDatabaseEntries", "numCollectionEntries", "countStaleConfigErrors", "totalRefreshWaitTimeMicros"),
        *("numActiveIncrementalRefreshes", "countIncrementalRefreshesStarted", "numActiveFullRefreshes"),
        *("countFullRefreshesStarted", "countFailedRefreshes", "operationsBlockedByRefresh"),
    ]
    blocked = cache.pop("operationsBlockedByRefresh")
    kinds = ("Inserts", "Queries", "Updates", "Deletes", "Commands")
    assert list(blocked) == ["countAllOperations", *(f"count{kind}" for kind in kinds)]
    assert {type(value) for value in (*cache.values(), *blocked.values())} == {Int64}
    assert cache["countFullRefreshesStarted"] > 0
    assert cache["numActiveFullRefreshes"] == cache["numActiveIncrementalRefreshes"] == 0


def test_types_of_counters(router: Client, plain: Client) -> None:
    ours, theirs = (run(client, {"serverStatus": 1}) for client in (router, plain))
    assert {name: type(count) for name, count in ours["opcounters"].items()} == {
        name: type(theirs["opcounters"][name]) for name in ours["opcounters"]
    }
    commands = ours["metrics"]["commands"].keys() & theirs["metrics"]["commands"].keys() - {"<UNKNOWN>"}
    assert len(commands) > 50
    for name in commands:
        shown = ours["metrics"]["commands"][name]
        assert {field: type(count) for field, count in shown.items()} == {"failed": Int64, "total": Int64}
