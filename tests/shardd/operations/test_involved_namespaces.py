"""Pipelines that name other collections, on real shards: these are admitted like the pipeline's own collection."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

JOIN = {"$lookup": {"from": "c", "localField": "_id", "foreignField": "_id", "as": "x"}}
NOT_SHARDED = UNSHARDED.to_document()


class World:
    """An unsharded collection ``u`` and the sharded collection ``c``, both in one database."""

    def __init__(self, sharded: ShardedNamespace) -> None:
        self.sharded = sharded
        self.versions = {"shardVersion": NOT_SHARDED, "databaseVersion": sharded.database_version}
        self.run({"insert": "u", "documents": [{"_id": 1}, {"_id": 2}]})
        sharded.insert({"_id": 1, "a": -1})

    def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command that was routed as one on an unsharded collection."""
        return self.sharded.run({**command, **self.versions})

    def aggregate(
        self, *stages: Mapping[str, Any], of: str = "u", routed: tuple[str, ...] = (), **options: object
    ) -> dict[str, Any]:
        """Run a pipeline; ``routed`` names collections that its router took to be unsharded."""
        involved = [{"ns": f"{self.sharded.db}.{name}", **self.versions} for name in routed]
        command = {"aggregate": of, "pipeline": list(stages), "cursor": {}, **options}
        return self.run({**command, **({"involvedNamespaces": involved} if involved else {})})

    def create_view(self, name: str, on: str, *stages: Mapping[str, Any]) -> None:
        """Create a view."""
        view = {"create": name, "viewOn": on, "pipeline": list(stages)}
        assert self.sharded.run({**view, "databaseVersion": self.sharded.database_version})["ok"]


@pytest.fixture
def world(ranged: ShardedNamespace) -> World:
    return World(ranged)


@pytest.mark.parametrize(
    "stage",
    [
        JOIN,
        {"$graphLookup": {"from": "c", "startWith": "$_id", "connectFromField": "a", "connectToField": "a", "as": "x"}},
        {"$unionWith": "c"},
        {"$unionWith": {"coll": "u", "pipeline": [JOIN]}},
        {"$facet": {"one": [JOIN]}},
        {"$out": "c"},
        {"$merge": "c"},
    ],
)
def test_the_error_names_a_collection_that_has_been_sharded(world: World, stage: dict[str, Any]) -> None:
    reply = world.aggregate(stage, routed=("c",))
    assert (reply["code"], reply["ns"]) == (ErrorCode.StaleConfig, world.sharded.namespace)
    assert reply["vReceived"] == NOT_SHARDED
    assert reply["vWanted"] == world.sharded.version()
    assert world.sharded.documents() == [{"_id": 1, "a": -1}]


@pytest.mark.parametrize("stage", [JOIN, {"$out": "c"}, {"$merge": "c"}])
def test_a_router_that_sends_no_versions_cannot_read_a_sharded_collection(world: World, stage: dict[str, Any]) -> None:
    reply = world.aggregate(stage)
    assert reply["code"] == ErrorCode.CommandNotSupported
    assert f"{world.sharded.namespace}, but it is sharded" in reply["errmsg"]


def test_the_error_names_a_database_with_another_version(mini: MiniCluster, world: World, db: str) -> None:
    version = mini.create_database(db, "sh0")
    entry = {"ns": f"{db}.t", "shardVersion": NOT_SHARDED}
    merge = {"aggregate": "u", "pipeline": [{"$merge": {"into": {"db": db, "coll": "t"}}}], "cursor": {}}
    old = {**version, "lastMod": version["lastMod"] + 1}
    reply = world.run({**merge, "involvedNamespaces": [{**entry, "databaseVersion": old}]})
    assert (reply["code"], reply["db"], reply["vWanted"]) == (ErrorCode.StaleDbVersion, db, version)
    assert world.run({**merge, "involvedNamespaces": [{**entry, "databaseVersion": version}]})["ok"]


def test_a_database_of_another_shard_is_refused(mini: MiniCluster, world: World, db: str) -> None:
    mini.create_database(db, "sh1")
    reply = world.aggregate({"$merge": {"into": {"db": db, "coll": "t"}}})
    assert reply["code"] == ErrorCode.CommandNotSupported
    assert "it is on sh1" in reply["errmsg"]


def test_unsharded_collections_are_joined_and_written(world: World) -> None:
    union = {"$unionWith": "t"}
    assert world.aggregate({"$out": "t"}, routed=("t",))["ok"]
    assert len(world.aggregate(union, routed=("t",))["cursor"]["firstBatch"]) == 4
    assert len(world.aggregate(union)["cursor"]["firstBatch"]) == 4


def test_explaining_a_pipeline_admits_the_collections_that_it_names(world: World) -> None:
    explained = {"aggregate": "u", "pipeline": [JOIN], "cursor": {}}
    involved = [{"ns": world.sharded.namespace, **world.versions}]
    reply = world.run({"explain": explained, "verbosity": "queryPlanner", "involvedNamespaces": involved})
    assert (reply["code"], reply["ns"]) == (ErrorCode.StaleConfig, world.sharded.namespace)


@pytest.mark.parametrize("stage", [{"$out": "t"}, {"$merge": "t"}])
def test_a_get_more_writes_nothing(world: World, stage: dict[str, Any]) -> None:
    reply = world.aggregate(stage, routed=("t",), cursor={"batchSize": 0})
    assert (reply["cursor"]["firstBatch"], reply["cursor"]["id"]) == ([], 0)
    assert world.run({"count": "t"})["n"] == 2


def test_a_cursor_ends_when_a_collection_that_it_joins_is_sharded(world: World) -> None:
    sharded = world.sharded
    world.run({"insert": "t", "documents": [{"_id": 1}, {"_id": 2}]})
    world.create_view("v", "t")
    joins = [{"$lookup": {"from": name, "localField": "_id", "foreignField": "_id", "as": name}} for name in ("t", "v")]
    opened = [world.aggregate(join, cursor={"batchSize": 0})["cursor"] for join in joins]
    opened.append(world.run({"find": "v", "batchSize": 0})["cursor"])
    read = [
        sharded.run({"getMore": each["id"], "collection": each["ns"].partition(".")[2], "batchSize": 1})["cursor"]
        for each in opened
    ]
    assert [len(each["nextBatch"]) for each in read] == [1, 1, 1]
    shard = {"_shardsvrCreateCollection": "t", "shardKey": {"_id": 1}, "databaseVersion": sharded.database_version}
    assert sharded.run(shard)["ok"]
    for each in opened:
        get_more = {"getMore": each["id"], "collection": each["ns"].partition(".")[2]}
        reply = sharded.run(get_more)
        assert reply["code"] == ErrorCode.QueryPlanKilled
        assert f"{sharded.db}.t, but it is sharded" in reply["errmsg"]
        assert sharded.run(get_more)["code"] == ErrorCode.CursorNotFound


def test_sharding_the_target_waits_for_a_merge(mini: MiniCluster, world: World) -> None:
    """Everything that the pipeline writes exists when the collection becomes sharded, and can be moved with it."""
    slowly = {
        "$match": {"$expr": {"$function": {"body": "function() { sleep(400); return true }", "args": [], "lang": "js"}}}
    }
    sharded = world.sharded
    with ThreadPoolExecutor(1) as pool, mini.shard_client("sh0") as client:
        merging = pool.submit(world.aggregate, slowly, {"$merge": "t"}, routed=("t",))
        running = {"command.aggregate": "u", "active": True}
        stages: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": running}]
        eventually(lambda: list(client.admin.aggregate(stages)), what="the pipeline runs")
        shard = {"_shardsvrCreateCollection": "t", "shardKey": {"_id": 1}, "databaseVersion": sharded.database_version}
        reply = client[sharded.db].command(shard)
        assert merging.done()
        assert merging.result()["ok"]
    assert reply["ok"]
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        assert mongod[sharded.db].t.count_documents({}) == 2


def test_a_view_that_joins_a_sharded_collection_is_left_to_the_router(world: World) -> None:
    world.create_view("v", "u", JOIN)
    for read in ({"find": "v"}, {"count": "v"}, {"distinct": "v", "key": "_id"}):
        reply = world.run(read)
        assert reply["code"] == ErrorCode.CommandOnShardedViewNotSupportedOnMongod
        assert reply["resolvedView"]["pipeline"] == [JOIN]


def test_joining_a_view(world: World) -> None:
    world.create_view("plain", "u", {"$match": {"_id": 1}})
    world.create_view("on_it", "plain")
    world.create_view("sharded", "c")
    world.create_view("joining", "u", JOIN)
    assert len(world.aggregate({"$unionWith": "on_it"}, routed=("on_it",))["cursor"]["firstBatch"]) == 3
    for view in ("sharded", "joining"):
        reply = world.aggregate({"$unionWith": view}, routed=(view,))
        assert reply["code"] == ErrorCode.CommandNotSupported
        assert f"{world.sharded.namespace}, but it is sharded" in reply["errmsg"]


@pytest.mark.parametrize(
    "read",
    [
        {"find": "v"},
        {"count": "v"},
        {"distinct": "v", "key": "a"},
        {"aggregate": "v", "pipeline": [], "cursor": {}},
    ],
)
def test_the_collation_of_a_view_cannot_be_overridden(world: World, read: dict[str, Any]) -> None:
    world.create_view("v", "c")
    assert world.run({**read, "collation": {"locale": "fr"}})["code"] == ErrorCode.OptionNotSupportedOnView
    reply = world.run({**read, "collation": {"locale": "simple"}})
    assert reply["code"] == ErrorCode.CommandOnShardedViewNotSupportedOnMongod
