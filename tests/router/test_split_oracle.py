"""Pipelines are split as MongoDB's own router code splits them.

A genuine shard server carries the code of mongos as ``clusterAggregate``, whose ``explain`` shows the halves. They are
compared by what a stage is and where it runs; the genuine halves are optimised, ours are as they were written.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.min_key import MinKey

from shardwright.router.pipelines.split import SplitPipeline
from tests.genuine_cluster import SHARDS, genuine_cluster
from tests.local_cluster import Client
from tests.router.pipelines.parsing import decoded, parsed

DATABASE = "split_oracle"
COLLECTION = "sharded"
NAMESPACE = f"{DATABASE}.{COLLECTION}"

Stages = list[dict[str, Any]]

SORT: dict[str, Any] = {"$sort": {"x": 1}}
GROUP: dict[str, Any] = {"$group": {"_id": "$g", "n": {"$sum": "$x"}}}
JOIN: dict[str, Any] = {"$lookup": {"from": "other", "localField": "g", "foreignField": "g", "as": "r"}}


def grouping(accumulator: dict[str, Any]) -> Stages:
    """A group with one accumulator."""
    return [{"$group": {"_id": "$g", "r": accumulator}}]


EXACT: list[Stages] = [
    *(
        grouping({name: "$x"})
        for name in (
            *("$addToSet", "$avg", "$first", "$last", "$max", "$mergeObjects", "$min", "$push"),
            *("$stdDevPop", "$stdDevSamp", "$sum"),
        )
    ),
    grouping({"$top": {"output": "$x", "sortBy": {"y": 1}}}),
    grouping({"$bottom": {"output": "$x", "sortBy": {"y": 1, "z": -1}}}),
    grouping({"$count": {}}),
    [GROUP, {"$match": {"n": {"$eq": 1}}}],
    [{"$limit": 5}],
    [{"$skip": 2}, {"$limit": 5}],
    [{"$limit": 5}, {"$skip": 2}],
    [{"$skip": 2}],
    [JOIN],
    [{"$bucketAuto": {"groupBy": "$x", "buckets": 3, "output": {"n": {"$sum": "$x"}}}}],
]
"""Pipelines whose merging half is the same to the letter."""

SHAPES: list[Stages] = [
    [],
    [{"$match": {"x": 1}}],
    [SORT],
    [SORT, {"$limit": 5}],
    [SORT, {"$project": {"x": 1}}],
    [SORT, {"$addFields": {"z": 1}}, GROUP],
    [SORT, {"$redact": "$$KEEP"}],
    [SORT, {"$unwind": "$a"}],
    [SORT, JOIN],
    [SORT, {"$sample": {"size": 2}}],
    [{"$limit": 5}, SORT],
    [{"$skip": 3}, SORT],
    [{"$match": {"x": 1}}, {"$limit": 3}, {"$match": {"g": 1}}],
    [{"$limit": 5}, GROUP],
    [GROUP, {"$sort": {"n": -1}}],
    [{"$count": "n"}],
    [{"$limit": 9}, {"$set": {"n": 1}}, {"$group": {"_id": "$n", "a": {"$push": "$$ROOT"}}}],
    [{"$sortByCount": "$g"}],
    [{"$sample": {"size": 3}}],
    [{"$sample": {"size": 3}}, SORT],
    [{"$unwind": "$a"}, GROUP],
    [{"$replaceRoot": {"newRoot": {"a": 1}}}],
    [{"$redact": "$$KEEP"}],
    [{"$facet": {"a": [{"$match": {"x": 1}}]}}],
    [{"$unionWith": "other"}],
    [{"$match": {"x": 1}}, JOIN, {"$group": {"_id": "$r"}}],
    [{"$out": "written"}],
    [GROUP, {"$merge": "written"}],
    [{"$collStats": {"count": {}}}],
    [{"$indexStats": {}}, {"$group": {"_id": "$name"}}],
    [{"$planCacheStats": {}}],
]
"""Pipelines whose halves have the same stages."""


@pytest.fixture(scope="module")
def shard(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a genuine shard server, with a collection sharded over both shards."""
    with (
        genuine_cluster(mongod_binary, tmp_path_factory.mktemp("genuine"), routers=1) as cluster,
        cluster.client() as router,
        cluster.direct(cluster.shards[SHARDS[0]]) as server,
    ):
        router.admin.command("enableSharding", DATABASE, primaryShard=SHARDS[0])
        router.admin.command("shardCollection", NAMESPACE, key={"k": 1})
        router.admin.command("split", NAMESPACE, middle={"k": 0})
        router.admin.command("moveChunk", NAMESPACE, bounds=[{"k": MinKey()}, {"k": 0}], to=SHARDS[1])
        yield server


def genuine_halves(shard: Client, pipeline: Stages) -> tuple[Stages, Stages, dict[str, Any]]:
    """The shards' part, the merger's part without ``$mergeCursors``, and that."""
    command = {"clusterAggregate": COLLECTION, "pipeline": pipeline, "cursor": {}, "explain": True}
    split = shard[DATABASE].command(command)["splitPipeline"]
    first, *merger = split["mergerPart"]
    return split["shardsPart"], merger, first["$mergeCursors"]


def plain(value: Any) -> Any:  # noqa: ANN401 - any part of a stage
    """The same value with constants as they are written."""
    if isinstance(value, dict):
        return (
            plain(value["$const"]) if list(value) == ["$const"] else {name: plain(each) for name, each in value.items()}
        )
    return [plain(each) for each in value] if isinstance(value, list) else value


def shape(stages: Stages) -> list[str]:
    """The names of the stages, the way mongod writes them, without what it adds or leaves out to save work."""
    names: list[str] = []
    for stage in stages:
        [(name, specification)] = stage.items()
        name = {"$set": "$addFields", "$replaceWith": "$replaceRoot"}.get(name, name)
        if name in ("$project", "$addFields", "$match"):
            continue
        names.append(name)
        if name == "$sort" and "sortKey" in specification and "limit" in specification:
            names.append("$limit")
    return names


@pytest.mark.parametrize("pipeline", EXACT, ids=str)
def test_the_merging_half(shard: Client, pipeline: Stages) -> None:
    _, merger, _ = genuine_halves(shard, pipeline)
    ours = decoded(SplitPipeline.of(parsed(*pipeline)).merger_part)
    assert [in_order(stage) for stage in ours] == [in_order(stage) for stage in plain(merger)]


def in_order(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage with its fields in a definite order."""
    return {name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in stage.items()}


@pytest.mark.parametrize("pipeline", SHAPES, ids=str)
def test_the_stages_of_both_halves(shard: Client, pipeline: Stages) -> None:
    shards, merger, reading = genuine_halves(shard, pipeline)
    split = SplitPipeline.of(parsed(*pipeline))
    assert (shape(decoded(split.shards_part)), shape(decoded(split.merger_part))) == (shape(shards), shape(merger))
    assert split.sort == reading.get("sort")
