"""Sharded time-series collections through our routers, on a genuine cluster and on ours."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson.son import SON
from pymongo.errors import OperationFailure

from tests.genuine_cluster import SHARDS
from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client, RunningCluster

DB = "interop_series"
OPTIONS = {"timeField": "t", "metaField": "m"}
START = datetime(2024, 1, 1)

OF_ONE_INCARNATION = frozenset({"lastmodEpoch", "lastmod", "timestamp", "uuid"})
BY_TIME = SON([("m", 1), ("t", 1)])


class Cluster:
    """One of the two clusters, with a time-series collection ``c`` on both shards, known to a second router."""

    def __init__(self, client: Client, other: Client, shards: tuple[str, ...]) -> None:
        self.client, self.other, self.admin, self.shards = client, other, client.admin, shards
        self.admin.command("enableSharding", DB, primaryShard=shards[0])
        self.admin.command("shardCollection", f"{DB}.c", key=BY_TIME, timeseries=OPTIONS)
        middle = SON([("meta", 5), ("control.min.t", START)])
        self.admin.command("split", f"{DB}.system.buckets.c", middle=middle)
        self.admin.command("moveChunk", f"{DB}.system.buckets.c", find=middle, to=shards[1])
        client[DB].c.insert_many([{"t": START + timedelta(seconds=i), "m": i % 10, "v": i} for i in range(100)])

    def answer(self, command: dict[str, Any], *, db: str = DB, is_other: bool = False) -> object:
        """Return the reply's parts about the command, without the names of servers."""
        try:
            reply = (self.other if is_other else self.client)[db].command(SON(command))
        except OperationFailure as failure:
            details = failure.details or {}
            return failure.code, details.get("codeName"), details.get("errmsg")
        if "cursor" in reply:
            return reply["cursor"]["ns"], reply["cursor"]["firstBatch"]
        if "values" in reply:
            return sorted(reply["values"])
        written = [(each["code"], each["errmsg"]) for each in reply.get("writeErrors", ())]
        return {name: reply[name] for name in ("n", "nModified") if name in reply}, written

    def catalog(self, name: str) -> object:
        """The entry of the buckets and their chunks, without what differs between any two collections."""
        entry = self.client.config["collections"].find_one({"_id": f"{DB}.system.buckets.{name}"})
        if entry is None:
            return None
        chunks = self.client.config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1)
        bounds = [(each["min"], each["max"], self.shards.index(each["shard"])) for each in chunks]
        return {field: value for field, value in entry.items() if field not in OF_ONE_INCARNATION}, bounds

    def lastmods(self, name: str) -> list[Any]:
        """The versions of the chunks of the buckets."""
        entry = self.client.config["collections"].find_one({"_id": f"{DB}.system.buckets.{name}"})
        assert entry is not None
        return [each["lastmod"] for each in self.client.config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1)]


@pytest.fixture(scope="module")
def clusters(client: Client, other_client: Client, cluster: RunningCluster) -> Iterator[tuple[Cluster, Cluster]]:
    """The genuine cluster and ours."""
    with cluster.direct("router.0") as own, cluster.direct("router.1") as other_own:
        yield Cluster(client, other_client, SHARDS), Cluster(own, other_own, (LOWER, UPPER))
        for each in (client, own):
            each.drop_database(DB)


def shard(name: str, key: dict[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401 - any option
    return {"shardCollection": f"{DB}.{name}", "key": SON(key), **options}


@pytest.mark.parametrize(
    "command",
    [
        shard("s1", {"m": 1}, timeseries=OPTIONS),
        shard("s2", {"m": "hashed", "t": 1}, timeseries=OPTIONS),
        shard("s3", {"m.a": 1, "m.b": 1}, timeseries={**OPTIONS, "granularity": "hours"}),
        shard("s4", {"t": 1}, timeseries={"timeField": "t"}),
        shard("s5", {"t": 1, "m": 1}, timeseries=OPTIONS),
        shard("s5", {"t": -1}, timeseries=OPTIONS),
        shard("s5", {"t": "hashed"}, timeseries=OPTIONS),
        shard("s5", {"m": -1}, timeseries=OPTIONS),
        shard("s5", {"v": 1}, timeseries=OPTIONS),
        shard("s5", {"_id": 1}, timeseries=OPTIONS),
        shard("s5", {"m": 1}, timeseries={"timeField": "t"}),
        shard("s5", {"m": 1}, timeseries=OPTIONS, collation={"locale": "fr"}),
        shard("c", dict(BY_TIME)),
        shard("c", dict(BY_TIME), timeseries=OPTIONS),
        shard("c", {"m": 1}, timeseries=OPTIONS),
        shard("c", dict(BY_TIME), timeseries={**OPTIONS, "granularity": "minutes"}),
    ],
    ids=str,
)
def test_shard_collection(clusters: tuple[Cluster, Cluster], command: dict[str, Any]) -> None:
    genuine, own = (each.answer(command, db="admin") for each in clusters)
    assert own == genuine
    name = command["shardCollection"].partition(".")[2]
    genuine, own = (each.catalog(name) for each in clusters)
    assert own == genuine


def deletion(query: dict[str, Any], limit: int = 0) -> dict[str, Any]:
    return {"delete": "c", "deletes": [{"q": query, "limit": limit}]}


def update(query: dict[str, Any], change: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of any type
    return {"update": "c", "updates": [{"q": query, "u": change, "multi": True, **options}]}


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "c", "documents": [{"t": START, "m": 3, "v": -1}, {"t": START, "m": 8, "v": -1}]},
        {"insert": "c", "documents": [{"m": 3}]},
        {"find": "c", "filter": {"v": {"$lt": 20}}, "sort": {"v": 1, "m": 1}, "projection": {"_id": 0}},
        {"find": "c", "filter": {"m": 8, "t": {"$gte": START + timedelta(seconds=90)}}, "projection": {"_id": 0}},
        {"count": "c", "query": {"m": {"$gte": 4}}},
        {"distinct": "c", "key": "m"},
        {"find": "c", "sort": {"m": -1}, "projection": {"_id": 0, "m": 1}, "hint": {"$natural": 1}, "batchSize": 1000},
        {"find": "c", "hint": {"meta": 1, "control.min.t": 1}},
        {"aggregate": "c", "pipeline": [{"$geoNear": {"near": [0, 0], "distanceField": "d"}}], "cursor": {}},
        {
            "aggregate": "c",
            "pipeline": [{"$geoNear": {"near": [0, 0], "key": "m.p", "distanceField": "d"}}],
            "cursor": {},
        },
        {
            "aggregate": "c",
            "pipeline": [{"$group": {"_id": "$m", "n": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}],
            "cursor": {},
        },
        deletion({"m": {"$in": [1, 7]}}),
        deletion({"m": 2}, limit=1),
        deletion({"v": 2}),
        update({"m": 2}, {"$set": {"m": 9}}),
        update({"m": 2}, {"$set": {"v": 9}}),
        update({"m": 2}, {"m": 9}),
        update({"m": 2}, {"$set": {"m": 9}}, upsert=True),
        update({"m": 2}, {"$set": {"m": 9}}, multi=False),
        {"findAndModify": "c", "query": {"m": 3}, "remove": True},
        {"listIndexes": "c"},
        {"dropIndexes": "c", "index": "missing"},
        {"refineCollectionShardKey": f"{DB}.c", "key": SON([("m", 1), ("t", 1), ("x", 1)])},
        {"reshardCollection": f"{DB}.system.buckets.c", "key": {"meta": 1}},
    ],
    ids=str,
)
def test_operations(clusters: tuple[Cluster, Cluster], command: dict[str, Any]) -> None:
    """Each one on both clusters, through a router that may believe the collection to be unsharded."""
    db = "admin" if next(iter(command)).endswith(("Key", "reshardCollection")) else DB
    genuine, own = (each.answer(command, db=db, is_other=True) for each in clusters)
    assert own == genuine


@pytest.mark.parametrize(
    "options",
    [
        {"timeseries": {"granularity": "days"}},
        {"timeseries": {"bucketMaxSpanSeconds": 5}},
        {"timeseries": {}},
        {"timeseries": {"granularity": "minutes"}},
        {"timeseries": {"granularity": "seconds"}},
        {"timeseries": {"granularity": "hours"}, "expireAfterSeconds": 10**9},
    ],
    ids=str,
)
def test_granularity(clusters: tuple[Cluster, Cluster], options: dict[str, Any]) -> None:
    """The collection has chunks on both shards, and the router does not know its present granularity."""
    answers, entries = [], []
    for each in clusters:
        answers.append(each.answer({"collMod": "c", **options}, is_other=True))
        each.client[DB].c.insert_one({"t": START + timedelta(days=3), "m": 7, "v": 1000})
        entries.append((each.catalog("c"), each.lastmods("c"), each.other[DB].c.count_documents({"v": 1000})))
    assert answers[1] == answers[0]
    assert entries[1] == entries[0]


@pytest.mark.parametrize("name", ["system.buckets.c", "plain"])
def test_granularity_of_what_has_none(clusters: tuple[Cluster, Cluster], name: str) -> None:
    for each in clusters:
        each.client[DB].plain.insert_one({})
    command = {"collMod": name, "timeseries": {"granularity": "hours"}}
    genuine, own = (each.answer(command) for each in clusters)
    assert own == genuine


def test_drop(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        each.client[DB].s1.drop()
        assert each.catalog("s1") is None
        assert "s1" not in each.other[DB].list_collection_names()
        each.other[DB].s1.insert_one({"_id": 1})
        assert list(each.client[DB].s1.find()) == [{"_id": 1}]
