"""Pipelines are split as MongoDB's own router code splits them.

A genuine shard server carries the code of mongos as ``clusterAggregate``, whose ``explain`` shows the parts. Stages are
compared by kind and place. The genuine parts are optimised; ours are as they were written.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.min_key import MinKey

from shardwright.router.pipelines.commands import merge_type
from shardwright.router.pipelines.split import SplitPipeline
from shardwright.sharding.pipelines.pushdown import moved_forward
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


def grouping_by(key: object) -> Stages:
    """A group by an expression, which the merger runs."""
    return [{"$limit": 5}, {"$group": {"_id": key}}]


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
"""Pipelines whose merging part is the same to the letter."""

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
"""Pipelines whose parts have the same stages."""


TEXT: dict[str, Any] = {"$match": {"$text": {"$search": "a"}}}
BY_SCORE: dict[str, Any] = {"$sort": {"score": {"$meta": "textScore"}, "x": 1}}
INSIDE: dict[str, Any] = {"$lookup": {**JOIN["$lookup"], "as": "x.y"}}
WINDOW: dict[str, Any] = {"sortBy": {"x": -1}, "output": {"r": {"$rank": {}}}}

MOVED: list[Stages] = [
    *([stage, {"$match": {"x": 1}}] for stage in (SORT, JOIN, {"$addFields": {"y": 1}}, {"$project": {"y": 0}})),
    *([stage, {"$match": {"x": 1}}] for stage in ({"$project": {"x": 1}}, {"$limit": 2}, {"$sample": {"size": 2}})),
    *(
        [stage, {"$match": {"x": 1}}, GROUP]
        for stage in ({"$unwind": "$a"}, {"$unwind": "$x"}, {"$project": {"x": "$z"}})
    ),
    [JOIN, {"$match": {"x": 1, "r.y": 2}}],
    [JOIN, {"$unwind": "$r"}, {"$match": {"x": 1}}, {"$sort": {"r.x": 1}}],
    [INSIDE, {"$match": {"x": 1}}],
    [JOIN, SORT, {"$limit": 3}],
    [JOIN, {"$sort": {"r": 1}}],
    [JOIN, {"$limit": 3}],
    [JOIN, {"$skip": 2}, {"$limit": 3}],
    *([GROUP, {"$match": match}] for match in ({"_id": 5}, {"_id": {"$gt": 5}, "n": 1}, {"_id": {"$exists": True}})),
    [{"$group": {"_id": {"a": "$x"}}}, {"$match": {"_id.a": 5}}],
    [{"$group": {"_id": "$x.y"}}, {"$match": {"_id": 5}}],
    [{"$setWindowFields": WINDOW}, {"$match": {"x": 1}}],
    [{"$setWindowFields": {"partitionBy": "$g.h", **WINDOW}}],
    [{"$setWindowFields": {"partitionBy": {"$mod": ["$g", 2]}, **WINDOW}}],
    [{"$fill": {"output": {"x": {"value": 1}}}}, GROUP],
    [{"$fill": {"sortBy": {"x": 1}, "output": {"y": {"method": "linear"}, "z": {"value": 1}}}}],
    [{"$fill": {"partitionByFields": ["g"], "output": {"y": {"method": "locf"}}}}],
    [{"$unwind": "$a"}, JOIN],
    [{"$unwind": "$a"}, {"$limit": 2}, JOIN],
    [TEXT, BY_SCORE, GROUP],
    [TEXT, BY_SCORE, {"$limit": 2}, {"$group": {"_id": {"$meta": "textScore"}}}],
]
"""Pipelines with a condition, a sort or a limit that is moved, or is not."""

RETURNED: list[Stages] = [
    [{"$limit": 5}, GROUP],
    [{"$limit": 5}, {"$match": {"z.0": 1, "w.v": None}}, GROUP],
    [{"$limit": 5}, {"$match": {"$expr": {"$eq": ["$$ROOT.a", "$$CURRENT.b"]}}}, GROUP],
    [{"$limit": 5}, {"$sort": {"x.y": 1}}, GROUP],
    [{"$limit": 5}, {"$count": "n"}],
    [{"$limit": 5}, {"$sortByCount": "$g.h"}],
    [{"$limit": 5}, {"$bucket": {"groupBy": "$g", "boundaries": [0, 1], "output": {"a": {"$sum": "$x"}}}}],
    [{"$bucketAuto": {"groupBy": "$g", "buckets": 2}}],
    [{"$limit": 5}, {"$facet": {"a": [GROUP], "b": [{"$project": {"y.z": 1}}]}}],
    [{"$limit": 5}, {"$facet": {"a": [GROUP], "b": [SORT]}}],
    *(grouping_by(key) for key in ("$$ROOT", {"$getField": "a"}, {"$literal": "$a"}, "$$NOW")),
    [{"$limit": 5}, {"$group": {"_id": {"$let": {"vars": {"v": "$a.b"}, "in": "$$v.c"}}}}],
    [{"$limit": 5}, {"$group": {"_id": 1, "a": {"$topN": {"n": 2, "output": ["$b", "$c"], "sortBy": {"s.t": 1}}}}}],
    [{"$limit": 5}, {"$addFields": {"b.c": "$a.d"}}, {"$group": {"_id": "$b"}}],
    [{"$limit": 5}, {"$project": {"b": 0}}, GROUP],
    [{"$limit": 5}, {"$unset": "b.c"}, GROUP],
    [{"$limit": 5}, {"$unwind": {"path": "$b.c", "includeArrayIndex": "i"}}, GROUP],
    [{"$limit": 5}, {"$replaceWith": {"a": "$b.c", "r": "$$ROOT.q"}}, SORT],
    [{"$limit": 5}, {"$redact": "$$KEEP"}, GROUP],
    [{"$limit": 5}, {"$out": "written"}],
    [{"$project": {"x": 1}}, {"$limit": 5}, GROUP],
    [JOIN, {"$project": {"r": 1}}],
    [{"$lookup": {"from": "other", "let": {"v": "$q.z"}, "pipeline": [], "as": "r"}}, {"$project": {"r": 1}}],
    [{"$unionWith": "other"}, {"$group": {"_id": "$x"}}],
    [{"$setWindowFields": {"partitionBy": "$p", **WINDOW}}, {"$project": {"r": 1}}],
    [{"$densify": {"field": "x", "range": {"step": 1, "bounds": "full"}}}, {"$project": {"y": 1}}],
    *([TEXT, SORT, stage] for stage in ({"$project": {"x": 1, "_id": 0}}, GROUP, {"$limit": 3})),
    *([TEXT, BY_SCORE, stage] for stage in ({"$project": {"x": 1, "_id": 0}}, GROUP, {"$limit": 3})),
    *([TEXT, sort, {"$limit": 3}, {"$count": "n"}] for sort in (SORT, BY_SCORE)),
    [TEXT, {"$limit": 5}, GROUP],
]
"""Pipelines whose merger needs some of the fields, or whole documents."""


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
        router[DATABASE][COLLECTION].create_index([("text", "text")])
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
    """Return the names of the stages, in mongod's form, without its optimizations."""
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


@pytest.mark.parametrize("pipeline", [*SHAPES, *MOVED], ids=str)
def test_who_merges(shard: Client, pipeline: Stages) -> None:
    ours = split(pipeline).merger_part
    for may_spill in (False, True):
        command: dict[str, Any] = {"clusterAggregate": COLLECTION, "pipeline": pipeline, "cursor": {}, "explain": True}
        genuine = shard[DATABASE].command({**command, "allowDiskUse": may_spill})
        assert merge_type(ours, may_spill=may_spill) == genuine["mergeType"]


def split(pipeline: Stages) -> SplitPipeline:
    """The parts that we send to shards."""
    return SplitPipeline.of(moved_forward(parsed(*pipeline))).returning_needed_fields()


def with_conditions(stages: Stages) -> list[object]:
    """As `shape`, with the paths of the conditions in place, the merged ones of several ``$match`` included."""
    names: list[object] = []
    for stage in stages:
        fields = set(_fields(stage["$match"])) if "$match" in stage else None
        if fields and names and isinstance(names[-1], set):
            names[-1] |= fields
        else:
            names += [fields] if fields else shape([stage])
    return names


def _fields(match: dict[str, Any]) -> Iterator[str]:
    for name, value in match.items():
        if name == "$and":
            for each in value:
                yield from _fields(each)
        else:
            yield name


@pytest.mark.parametrize("pipeline", MOVED, ids=str)
def test_what_moves_to_the_shards(shard: Client, pipeline: Stages) -> None:
    shards, merger, reading = genuine_halves(shard, pipeline)
    ours = split(pipeline)
    assert with_conditions(decoded(ours.shards_part)) == with_conditions(shards)
    absorbed = any("unwinding" in stage.get("$lookup", {}) for stage in merger)
    ours_merger = [stage for stage in decoded(ours.merger_part) if not (absorbed and "$unwind" in stage)]
    assert with_conditions(ours_merger) == with_conditions(merger)
    assert list((ours.sort or {}).values()) == list(reading.get("sort", {}).values())


def returned(stages: Stages) -> set[str] | None:
    """The fields that the ``$project`` at the end includes."""
    included = stages[-1].get("$project") if stages else None
    return None if included is None else {name for name, value in flat(included) if value != 0}


def flat(included: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The paths of a projection."""
    for name, value in included.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@pytest.mark.parametrize("pipeline", RETURNED, ids=str)
def test_the_fields_that_shards_return(shard: Client, pipeline: Stages) -> None:
    shards, _, _ = genuine_halves(shard, pipeline)
    assert returned(decoded(split(pipeline).shards_part)) == returned(shards)
