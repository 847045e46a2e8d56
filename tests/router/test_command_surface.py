"""Rare commands on a cluster: the router's replies compared with a mongod's, and their effects on the shards."""

from hashlib import md5
from typing import Any, Final

import gridfs
import pytest
from bson.binary import Binary
from bson.regex import Regex

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import MISSING_FIELD
from tests.integration.raw_client import raw_client
from tests.integration.routers import END_SECONDS_MAX, extra_router
from tests.integration.sharded import shard_by_range
from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import Command, run

DB: Final = "command_surface"


def test_list_commands_agrees_with_a_mongod(router: Client, plain: Client) -> None:
    ours, theirs = (run(client, {"listCommands": 1})["commands"] for client in (router, plain))
    fields = ("adminOnly", "apiVersions", "deprecatedApiVersions", "requiresAuth")
    common = ours.keys() & theirs.keys()
    ours, theirs = ({name: [all_[name][each] for each in fields] for name in common} for all_ in (ours, theirs))
    assert ours == theirs


WRONG_NAMES: Final[list[Any]] = [5, None, True, {"a": 1}, Regex("x"), "", ".a", "a\0b"]
NAMING: Final[dict[str, Command]] = {
    **{name: {} for name in ("find", "count", "drop", "create", "listIndexes", "collStats", "validate", "collMod")},
    **{name: {} for name in ("planCacheClear", "planCacheListFilters", "planCacheClearFilters")},
    "insert": {"documents": [{}]},
    "update": {"updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
    "delete": {"deletes": [{"q": {}, "limit": 1}]},
    "distinct": {"key": "a"},
    "findAndModify": {"remove": True},
    "createIndexes": {"indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    "dropIndexes": {"index": "a_1"},
    "convertToCapped": {"size": 1000},
    "planCacheSetFilter": {"query": {}, "indexes": []},
    "killCursors": {"cursors": []},
}


@pytest.mark.parametrize("name", NAMING)
def test_collection_names_that_are_none(router: Client, plain: Client, name: str) -> None:
    for wrong in WRONG_NAMES:
        command = {name: wrong, **NAMING[name]}
        assert run(router, command, DB) == run(plain, command, DB), command


@pytest.mark.parametrize("name", ["insert", "collStats", "drop", "create", "killCursors", "planCacheClear"])
def test_uuid_in_place_of_a_collection_name(router: Client, plain: Client, name: str) -> None:
    command = {name: Binary(bytes(16), 4), **NAMING[name]}
    assert run(router, command, DB) == run(plain, command, DB)


def test_default_read_and_write_concern(router: Client, plain: Client) -> None:
    refused: list[Command] = [
        {"setDefaultRWConcern": 1},
        {"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "snapshot"}},
        {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 0}},
        {"setDefaultRWConcern": 1, "zz": 1},
    ]
    for command in refused:
        assert run(router, command) == run(plain, command)
    try:
        changed = run(router, {"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "majority"}})
        assert (changed["defaultReadConcern"], changed["defaultReadConcernSource"]) == ({"level": "majority"}, "global")
        shown = run(router, {"getDefaultRWConcern": 1})
        assert shown["updateOpTime"] == changed["updateOpTime"]
        assert run(router, {"getDefaultRWConcern": 1, "inMemory": True}) == {**shown, "inMemory": True}
        assert {**run(router, {"serverStatus": 1})["defaultRWConcern"], "ok": 1.0} == shown
        router[DB].defaults.insert_one({"_id": 1})
        assert run(router, {"find": "defaults"}, DB)["cursor"]["firstBatch"] == [{"_id": 1}]
    finally:
        assert run(router, {"setDefaultRWConcern": 1, "defaultReadConcern": {}})["ok"] == 1
    assert run(router, {"getDefaultRWConcern": 1})["defaultReadConcernSource"] == "implicit"


def test_cluster_parameters_are_those_of_all_servers(cluster: RunningCluster, router: Client, plain: Client) -> None:
    refused: list[Command] = [
        {"getClusterParameter": "zz"},
        {"getClusterParameter": []},
        {"setClusterParameter": {"zz": 1}},
    ]
    for command in refused:
        assert run(router, command) == run(plain, command)
    name = "changeStreamOptions"
    for value in (100, "off"):
        chosen = {"preAndPostImages": {"expireAfterSeconds": value}}
        assert run(router, {"setClusterParameter": {name: chosen}}) == {"ok": 1.0}
        with cluster.direct("shard1.0.mongod") as shard:
            for client in (router, plain, shard):
                [parameter] = run(client, {"getClusterParameter": name})["clusterParameters"]
                assert parameter["preAndPostImages"] == {"expireAfterSeconds": value}


def test_feature_compatibility_version(router: Client, plain: Client) -> None:
    commands: list[Command] = [
        {"setFeatureCompatibilityVersion": "6.0"},
        {"setFeatureCompatibilityVersion": "9"},
        {"setFeatureCompatibilityVersion": 5},
        {"setFeatureCompatibilityVersion": "6.0", "zz": 1},
    ]
    for command in commands:
        assert run(router, command) == run(plain, command)


@pytest.mark.parametrize("version", ["5.0", "5.3"])
def test_versions_in_which_mongods_know_collections_by_name_only(router: Client, plain: Client, version: str) -> None:
    """Shards could neither move nor change collections with them."""
    refused = run(router, {"setFeatureCompatibilityVersion": version})
    assert (refused["code"], refused["codeName"]) == (332, "CannotDowngrade")
    shown = run(plain, {"getParameter": 1, "featureCompatibilityVersion": 1})
    assert shown["featureCompatibilityVersion"] == {"version": "6.0"}


def test_user_write_block_mode(router: Client, plain: Client) -> None:
    commands: list[Command] = [
        {"setUserWriteBlockMode": 1},
        {"setUserWriteBlockMode": 1, "global": 5},
        {"setUserWriteBlockMode": 1, "global": False},
    ]
    for command in commands:
        assert run(router, command) == run(plain, command)


def test_operation_counters_count_statements(router: Client) -> None:
    collection = router[DB].counted
    before = run(router, {"serverStatus": 1})["opcounters"]
    collection.insert_many([{"_id": n} for n in range(5)])
    collection.insert_one({"_id": 5})
    router[DB].command({"update": "counted", "updates": [{"q": {"_id": n}, "u": {"$set": {"a": 1}}} for n in (1, 2)]})
    collection.delete_one({"_id": 0})
    assert len(list(collection.find(batch_size=4))) == 5
    after = run(router, {"serverStatus": 1})["opcounters"]
    names = ("insert", "update", "delete", "query", "getmore")
    assert [after[name] - before[name] >= least for name, least in zip(names, (6, 2, 1, 1, 1), strict=True)] == [
        True
    ] * 5


def test_unknown_commands_are_not_in_the_operation_counters(router: Client) -> None:
    def counted() -> tuple[int, int]:
        status = run(router, {"serverStatus": 1})
        return status["opcounters"]["command"], status["metrics"]["commands"]["<UNKNOWN>"]

    (commands, unknown), own = counted(), 1
    run(router, {"noSuchCommand": 1})
    after, unknown_after = counted()
    assert (after - commands, unknown_after - unknown) == (own, 1)


def test_sessions_without_a_user(router: Client) -> None:
    with router.start_session() as session:
        router[DB].unowned.find_one({}, session=session)
        stage = {"$listLocalSessions": {"users": [{"user": "", "db": ""}]}}
        listed = [each["_id"]["id"] for each in router.admin.aggregate([stage])]
        assert session.session_id["id"] in listed


@pytest.mark.parametrize("collection", ["counted", "sharded_counted"])
def test_an_ordered_batch_counts_until_its_first_error(router: Client, collection: str) -> None:
    if collection == "sharded_counted":
        shard_by_range(router[DB], collection, key="_id", split_at=100)
    insert: Command = {"insert": collection, "documents": [{"_id": each} for each in (103, 104, 104, 105, 3)]}
    for ordered, counted in ((True, 3), (False, 5)):
        before = run(router, {"serverStatus": 1})["opcounters"]["insert"]
        assert "writeErrors" in run(router, {**insert, "ordered": ordered}, DB)
        assert run(router, {"serverStatus": 1})["opcounters"]["insert"] - before == counted
        router[DB][collection].delete_many({})


def test_refresh_logical_session_cache_now(cluster: RunningCluster, router: Client) -> None:
    with router.start_session() as session:
        router[DB].refreshed.insert_one({}, session=session)
        assert run(router, {"refreshLogicalSessionCacheNow": 1}) == {"ok": 1.0}
        with cluster.direct("shard0.0.mongod") as shard:
            assert shard.config["system.sessions"].find_one({"_id.id": session.session_id["id"]})


def test_notes_for_the_oplog(cluster: RunningCluster, router: Client) -> None:
    assert run(router, {"appendOplogNote": 1, "data": {"note": DB}})["raw"].keys() == set(cluster.shards.values())
    with cluster.direct("shard1.0.mongod") as shard:
        assert shard.local["oplog.rs"].find_one({"op": "n", "o.note": DB})


def test_multicast(cluster: RunningCluster, router: Client) -> None:
    hosts = run(router, {"multicast": {"ping": 1}, "db": DB})["hosts"]
    shards = {string.partition("/")[2] for string in cluster.shards.values()}
    assert hosts.keys() == {cluster.address("config.0.configd"), *shards}
    assert {answer["ok"] for answer in hosts.values()} == {1.0}


@pytest.mark.parametrize("value", [1, "ping", None, [{"ping": 1}]], ids=str)
def test_multicast_of_no_command(router: Client, value: object) -> None:
    assert run(router, {"multicast": value})["code"] in (ErrorCode.TypeMismatch, MISSING_FIELD)
    assert router.admin.command("ping")["ok"] == 1


def test_connection_pools(cluster: RunningCluster, router: Client) -> None:
    router[DB].pools.insert_one({})
    statistics = run(router, {"connPoolStats": 1})
    assert statistics["replicaSets"].keys() == {"config", *cluster.shards}
    [host] = statistics["replicaSets"]["shard0"]["hosts"]
    assert (host["ok"], host["ismaster"]) == (True, True)
    assert statistics["totalCreated"] == sum(each["created"] for each in statistics["hosts"].values())
    assert run(router, {"dropConnections": 1, "hostAndPort": [host["addr"]]}) == {"ok": 1.0}


@pytest.mark.parametrize(("daemon", "others"), [("config.0.configd", "shard0 shard1"), ("shard0.0.shardd", "config")])
def test_replica_sets_that_a_daemon_follows(cluster: RunningCluster, router: Client, daemon: str, others: str) -> None:
    router[DB].pools.insert_one({})
    with cluster.direct(daemon) as client:
        sets = run(client, {"connPoolStats": 1})["replicaSets"]
    hosts = [sets[each]["hosts"] for each in others.split()]
    assert [(host["ok"], host["ismaster"]) for [host] in hosts] == [(True, True)] * len(hosts)


def test_split_vector(router: Client, plain: Client) -> None:
    command: Command = {"splitVector": f"{DB}.vector", "keyPattern": {"_id": 1}, "maxChunkSizeBytes": 1 << 20}
    for client in (router, plain):
        client[DB].vector.insert_one({"_id": 1})
    assert run(router, command, DB) == run(plain, command, DB)
    router.admin.command("shardCollection", f"{DB}.vector", key={"_id": 1})
    assert run(router, command, DB)["code"] == 20


@pytest.mark.parametrize("key", [None, {"files_id": 1}, {"files_id": 1, "n": 1}], ids=str)
def test_grid_fs(router: Client, key: dict[str, int] | None) -> None:
    """A file of several chunks is written, read and hashed, wherever its chunks are."""
    root = f"fs{0 if key is None else len(key)}"
    chunks = f"{DB}.{root}.chunks"
    if key is not None:
        router.admin.command("shardCollection", chunks, key=key)
    files, data = gridfs.GridFS(router[DB], root), bytes(range(256)) * 20
    name = files.put(data, chunk_size=1000)
    if key is not None and "n" in key:
        for n in (2, 4):
            router.admin.command("split", chunks, middle={"files_id": name, "n": n})
        router.admin.command("moveChunk", chunks, find={"files_id": name, "n": 2}, to="shard1")
    assert files.get(name).read() == data
    assert run(router, {"filemd5": name, "root": root}, DB) == {
        "numChunks": 6,
        "md5": md5(data, usedforsecurity=False).hexdigest(),
        "ok": 1.0,
    }
    files.delete(name)
    assert not files.exists(name)


def test_file_md5_of_nothing(router: Client, plain: Client) -> None:
    assert run(router, {"filemd5": 1}, f"{DB}_missing") == run(plain, {"filemd5": 1}, f"{DB}_missing")
    router.admin.command("shardCollection", f"{DB}.other.chunks", key={"n": 1})
    assert run(router, {"filemd5": 1, "root": "other"}, DB)["code"] == 20


def test_text_score_stays_inside(router: Client) -> None:
    """Whether the sort is by the score or by a field."""
    router.admin.command("shardCollection", f"{DB}.text", key={"k": 1})
    router.admin.command("split", f"{DB}.text", middle={"k": 0})
    router.admin.command("moveRange", f"{DB}.text", min={"k": 0}, toShard="shard1")
    collection = router[DB].text
    collection.create_index([("t", "text")])
    documents = [{"_id": k, "k": k, "t": "word " * (k + 3)} for k in range(-2, 2)]
    collection.insert_many(documents)
    match: Command = {"$match": {"$text": {"$search": "word"}}}
    orders: list[Command] = [{"s": {"$meta": "textScore"}}, {"k": 1}]
    for order in orders:
        found = list(collection.aggregate([match, {"$sort": order}]))
        assert sorted(found, key=lambda document: int(document["k"])) == documents


def test_shutdown(cluster: RunningCluster) -> None:
    with extra_router(cluster) as (address, process):
        with raw_client(address) as client:
            client.send_command({"shutdown": 1, "timeoutSecs": 1})
            assert client.is_closed_by_server()
        assert process.wait(END_SECONDS_MAX) == 0
