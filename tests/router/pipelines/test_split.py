"""The split of a pipeline into the parts of the shards and of the merger."""

from typing import Any

import pytest

from shardwright.router.pipelines.router_merge import RouterMerge
from shardwright.router.pipelines.split import SplitPipeline
from shardwright.router.reads.sort_order import SortOrder
from tests.router.pipelines.parsing import decoded, parsed

Stages = list[dict[str, Any]]

MATCH: dict[str, Any] = {"$match": {"a": 1}}
SORT: dict[str, Any] = {"$sort": {"a": -1, "b": 1}}
JOIN: dict[str, Any] = {"$lookup": {"from": "d", "as": "x", "pipeline": []}}


def merging(**accumulators: object) -> dict[str, Any]:
    """The merger's part of a ``$group``."""
    return {"$group": {"_id": "$$ROOT._id", **accumulators, "$doingMerge": True}}


GROUP: dict[str, Any] = {
    "$group": {"_id": "$g", "n": {"$sum": "$a"}, "t": {"$topN": {"n": 2, "output": "$a", "sortBy": {"b": 1}}}}
}
GROUP_MERGED = merging(n={"$sum": "$$ROOT.n"}, t={"$topN": {"n": 2, "output": "$$ROOT.t", "sortBy": {"b": 1}}})

UNWIND: dict[str, Any] = {"$unwind": "$b"}
RANK: dict[str, Any] = {"r": {"$rank": {}}}
FILL_VALUE: dict[str, Any] = {"$fill": {"output": {"a": {"value": 0}}}}
NEAR: dict[str, Any] = {"$geoNear": {"near": [0, 0], "distanceField": "d"}}
NEAR_A: dict[str, Any] = {"$geoNear": {"near": [0, 0], "key": "a", "distanceField": "d"}}
NEAR_META: dict[str, Any] = {"$geoNear": {"near": [0, 0], "key": "m.p", "distanceField": "d"}}
SET: dict[str, Any] = {"$set": {"a": 1}}

UNPACK: dict[str, Any] = {"$_internalUnpackBucket": {"timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600}}
BY_META: dict[str, Any] = {"$sort": {"m.a": 1}}
NOT_MOVED: dict[str, Any] = {"$_internalInhibitOptimization": {}}

SPLITS: list[tuple[Stages, Stages, Stages]] = [
    # Of buckets: what mongod would put in front of them may not lose its sort keys.
    ([{"$sort": {"meta.a": 1}}, UNPACK, SET], [{"$sort": {"meta.a": 1}}], [UNPACK, SET]),
    (
        [{"$sort": {"meta": 1}}, UNPACK, {"$skip": 1}, {"$limit": 2}],
        [{"$sort": {"meta": 1}}, {"$limit": 3}],
        [UNPACK, {"$skip": 1}, {"$limit": 2}],
    ),
    ([{"$sort": {"meta": 1}}, UNPACK, MATCH, {"$limit": 2}], [{"$sort": {"meta": 1}}], [UNPACK, MATCH, {"$limit": 2}]),
    ([UNPACK, MATCH, BY_META, SET], [UNPACK, MATCH, NOT_MOVED, BY_META, SET], []),
    ([UNPACK, SET, BY_META, {"$limit": 2}], [UNPACK, SET, NOT_MOVED, BY_META, {"$limit": 2}], [{"$limit": 2}]),
    ([UNPACK, {"$sort": {"m": 1, "t": 1}}], [UNPACK, {"$sort": {"m": 1, "t": 1}}], []),
    ([NEAR, UNPACK, {"$limit": 2}], [NEAR, {"$limit": 2}], [UNPACK, {"$limit": 2}]),
    ([UNPACK, NEAR, {"$limit": 2}], [UNPACK, NEAR, {"$limit": 2}], [{"$limit": 2}]),
    ([MATCH, UNPACK, NEAR], [MATCH, UNPACK, NEAR], []),
    ([UNPACK, MATCH, NEAR_A], [UNPACK, MATCH, NEAR_A], []),
    ([UNPACK, SET, NEAR_META], [UNPACK, SET], [NEAR_META]),
    ([UNPACK, NEAR_META], [UNPACK, NEAR_META], []),
    ([MATCH, NEAR_A], [MATCH], [NEAR_A]),
    ([], [], []),
    ([MATCH, {"$unwind": "$b"}, {"$redact": "$$KEEP"}], [MATCH, {"$unwind": "$b"}, {"$redact": "$$KEEP"}], []),
    ([MATCH, SORT, {"$project": {"a": 1}}, MATCH], [MATCH, SORT, {"$project": {"a": 1}}, MATCH], []),
    ([SORT, {"$unwind": "$b"}], [SORT], [{"$unwind": "$b"}]),
    ([SORT, {"$skip": 2}, {"$limit": 3}], [SORT, {"$limit": 5}], [{"$skip": 2}, {"$limit": 3}]),
    ([{"$limit": 3}, {"$skip": 2}], [{"$limit": 3}], [{"$limit": 3}, {"$skip": 2}]),
    (
        [{"$skip": 2}, {"$set": {"a": 1}}, {"$limit": 3}],
        [{"$limit": 5}],
        [{"$skip": 2}, {"$set": {"a": 1}}, {"$limit": 3}],
    ),
    ([{"$skip": 2}, MATCH, {"$limit": 3}], [], [{"$skip": 2}, MATCH, {"$limit": 3}]),
    ([{"$skip": 2}], [], [{"$skip": 2}]),
    ([{"$skip": 2**63 - 1}, {"$limit": 1}], [], [{"$skip": 2**63 - 1}, {"$limit": 1}]),
    ([{"$sample": {"size": 3}}, JOIN], [{"$sample": {"size": 3}}, {"$limit": 3}], [{"$limit": 3}, JOIN]),
    ([MATCH, GROUP, {"$limit": 3}], [MATCH, GROUP], [GROUP_MERGED, {"$limit": 3}]),
    ([SORT, GROUP], [SORT], [GROUP]),
    ([{"$limit": 9}, GROUP], [{"$limit": 9}], [{"$limit": 9}, GROUP]),
    ([MATCH, UNWIND, UNWIND, JOIN], [MATCH], [UNWIND, UNWIND, JOIN]),
    ([UNWIND, {"$limit": 3}, JOIN], [UNWIND, {"$limit": 3}], [{"$limit": 3}, JOIN]),
    ([UNWIND, {"$skip": 3}, SET], [UNWIND], [{"$skip": 3}, SET]),
    ([JOIN, {"$skip": 2}, {"$limit": 3}], [{"$limit": 5}], [JOIN, {"$skip": 2}, {"$limit": 3}]),
    ([FILL_VALUE, MATCH], [{"$addFields": {"a": {"$ifNull": ["$a", 0]}}}, MATCH], []),
    (
        [{"$setWindowFields": {"partitionBy": "$g.h", "sortBy": {"k": -1}, "output": RANK}}, MATCH],
        [{"$sort": {"g.h": 1, "k": -1}}],
        [{"$_internalSetWindowFields": {"partitionBy": "$g.h", "sortBy": {"k": -1}, "output": RANK}}, MATCH],
    ),
    (
        [{"$fill": {"sortBy": {"k": 1}, "output": {"a": {"method": "linear"}, "b": {"value": "$x"}}}}],
        [{"$sort": {"k": 1}}],
        [
            {"$_internalSetWindowFields": {"sortBy": {"k": 1}, "output": {"a": {"$linearFill": "$a"}}}},
            {"$addFields": {"b": {"$ifNull": ["$b", "$x"]}}},
        ],
    ),
    (
        [MATCH, {"$count": "n"}],
        [MATCH, {"$group": {"_id": None, "n": {"$sum": 1}}}],
        [merging(n={"$sum": "$$ROOT.n"}), {"$project": {"n": 1, "_id": 0}}],
    ),
    (
        [{"$sortByCount": "$g"}],
        [{"$group": {"_id": "$g", "count": {"$sum": 1}}}],
        [merging(count={"$sum": "$$ROOT.count"}), {"$sort": {"count": -1}}],
    ),
    (
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 1]}}],
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 1]}}],
        [merging(count={"$sum": "$$ROOT.count"}), {"$sort": {"_id": 1}}],
    ),
    (
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 1], "output": {"m": {"$avg": "$b"}}}}],
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 1], "output": {"m": {"$avg": "$b"}}}}],
        [merging(m={"$avg": "$$ROOT.m"}), {"$sort": {"_id": 1}}],
    ),
    (
        [NEAR],
        [NEAR],
        [],
    ),
    ([{"$indexStats": {}}, GROUP], [{"$indexStats": {}}, GROUP], [GROUP_MERGED]),
    *(
        ([{name: {}}, MATCH, stage], [{name: {}}, MATCH], [stage])
        for name in ("$currentOp", "$planCacheStats")
        for stage in (GROUP, {"$sort": {"a": 1}})
    ),
    *(
        ([MATCH, {name: {}}, MATCH], [MATCH], [{name: {}}, MATCH])
        for name in (
            *("$bucketAuto", "$densify", "$facet", "$fill", "$graphLookup", "$lookup", "$merge", "$out"),
            *("$setWindowFields", "$unionWith", "$unknown", "$collStats"),
        )
    ),
]


@pytest.mark.parametrize(("pipeline", "shards", "merger"), SPLITS, ids=str)
def test_the_halves(pipeline: Stages, shards: Stages, merger: Stages) -> None:
    split = SplitPipeline.of(parsed(*pipeline))
    assert (decoded(split.shards_part), decoded(split.merger_part)) == (shards, merger)
    assert split.is_partial is any("$doingMerge" in stage.get("$group", {}) for stage in merger)


@pytest.mark.parametrize(
    "stage",
    [
        {"$sort": {}},
        {"$sort": {"$natural": 1}},
        {"$sort": 3},
        {"$limit": 0},
        {"$limit": "a"},
        {"$skip": -1},
        {"$sample": {"size": 0}},
        {"$sample": {"size": True}},
        {"$sample": 3},
        {"$count": ""},
        {"$count": "$a"},
        {"$count": "a.b"},
        {"$count": "_id"},
        {"$count": 3},
        {"$sortByCount": "g"},
        {"$sortByCount": {}},
        {"$sortByCount": {"a": 1}},
        {"$group": 3},
        {"$group": {"n": {"$sum": 1}}},
        {"$group": {"_id": 1, "n": 1}},
        {"$group": {"_id": 1, "n": {}}},
        {"$group": {"_id": 1, "n": {"$unknown": 1}}},
        {"$group": {"_id": 1, "a.b": {"$sum": 1}}},
        {"$group": {"_id": 1, "$a": {"$sum": 1}}},
        {"$group": {"_id": 1, "n": {"$top": 3}}},
        {"$group": {"_id": 1, "n": {"$top": {"sortBy": {"a": 1}}}}},
        {"$bucket": 3},
        {"$bucket": {"output": 3}},
        {"$bucket": {"output": {"n": 1}}},
        {"$geoNear": 3},
        {"$geoNear": {"near": [0, 0]}},
        {"$fill": 3},
        {"$fill": {"output": {}}},
        {"$fill": {"output": {"a": {"method": "other"}}}},
        {"$fill": {"output": {"a": {"method": "linear"}}}},
        {"$fill": {"output": {"a": {"value": 1, "method": "locf"}}}},
        {"$fill": {"output": {"a": {"value": 1}}, "unknown": 1}},
        {"$fill": {"partitionBy": {"x": 1}, "partitionByFields": ["a"], "output": {"a": {"value": 1}}}},
        {"$fill": {"partitionByFields": ["a.b"], "output": {"a": {"value": 1}}}},
        {"$fill": {"sortBy": {"a": 2}, "output": {"a": {"value": 1}}}},
        {"$setWindowFields": 3},
        {"$setWindowFields": {"sortBy": {"k": 1}}},
        {"$setWindowFields": {"sortBy": {"k": 2}, "output": RANK}},
        {"$setWindowFields": {"sortBy": {"k": 1}, "output": RANK, "unknown": 1}},
        {"$setWindowFields": {"sortBy": {"k": 1}, "output": {"a": {"$sum": 1}, "a.b": {"$sum": 1}}}},
    ],
    ids=str,
)
def test_what_mongod_will_refuse_is_left_to_the_merger(stage: dict[str, Any]) -> None:
    split = SplitPipeline.of(parsed(MATCH, stage, MATCH))
    assert (decoded(split.shards_part), decoded(split.merger_part)) == ([MATCH], [stage, MATCH])


ACCUMULATORS: list[tuple[object, object]] = [
    *(
        ({name: "$a"}, {name: "$$ROOT.f"})
        for name in (
            *("$addToSet", "$avg", "$first", "$last", "$max", "$mergeObjects", "$min", "$push"),
            *("$stdDevPop", "$stdDevSamp", "$sum"),
        )
    ),
    ({"$count": {}}, {"$sum": "$$ROOT.f"}),
    *(
        ({name: {"n": 2, "input": ["$a"]}}, {name: {"n": 2, "input": "$$ROOT.f"}})
        for name in ("$firstN", "$lastN", "$maxN", "$minN")
    ),
    *(
        ({name: {"output": "$a", "sortBy": {"b": 1}}}, {name: {"output": "$$ROOT.f", "sortBy": {"b": 1}}})
        for name in ("$bottom", "$top")
    ),
    (
        {"$accumulator": {"init": "i", "accumulate": "a", "accumulateArgs": ["$a"], "merge": "m", "lang": "js"}},
        {"$accumulator": {"init": "i", "accumulate": "a", "accumulateArgs": "$$ROOT.f", "merge": "m", "lang": "js"}},
    ),
]


@pytest.mark.parametrize(
    "partition", [{"$mod": ["$g", 2]}, {"a": "$g"}, "$$ROOT.g", "$k", "constant", None, 3], ids=str
)
def test_a_partition_that_is_not_another_field_is_computed_by_the_shards(partition: object) -> None:
    window = {"partitionBy": partition, "sortBy": {"k": -1}, "output": RANK}
    split = SplitPipeline.of(parsed({"$setWindowFields": window}))
    computing, sorting = decoded(split.shards_part)
    [name] = computing["$addFields"]
    assert computing["$addFields"][name] == {"$let": {"vars": {}, "in": partition}}
    assert list(sorting["$sort"].items()) == [(name, 1), ("k", -1)]
    assert split.sort == sorting["$sort"]
    assert decoded(split.merger_part) == [
        {"$_internalSetWindowFields": {**window, "partitionBy": f"${name}"}},
        {"$project": {name: False}},
    ]


@pytest.mark.parametrize(("given", "merged"), ACCUMULATORS, ids=str)
def test_the_merging_half_of_each_accumulator(given: object, merged: object) -> None:
    split = SplitPipeline.of(parsed({"$group": {"_id": "$g", "f": given}}))
    assert decoded(split.merger_part) == [merging(f=merged)]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ([MATCH], (None, 0, 0)),
        ([SORT], (SortOrder((True, False)), 0, 0)),
        ([SORT, {"$skip": 5}, {"$limit": 10}], (SortOrder((True, False)), 5, 10)),
        ([{"$limit": 10}, {"$skip": 5}], (None, 5, 5)),
        ([{"$limit": 10}, {"$limit": 20}, {"$skip": 1}, {"$skip": 2}], (None, 3, 7)),
        ([{"$limit": 10}, {"$project": {"a": 1}}], (None, 0, 10)),
    ],
    ids=str,
)
def test_the_router_merges_by_itself(pipeline: Stages, expected: tuple[object, int, int]) -> None:
    merge = RouterMerge.of(SplitPipeline.of(parsed(*pipeline)))
    assert merge is not None
    assert (merge.order, merge.skip, merge.limit) == expected


def test_plain_projections_run_on_the_shards() -> None:
    merge = RouterMerge.of(SplitPipeline.of(parsed({"$limit": 10}, {"$project": {"a": "$b"}})))
    assert merge is not None
    assert decoded(merge.stages) == [{"$limit": 10}, {"$project": {"a": "$b"}}]


@pytest.mark.parametrize(
    "pipeline",
    [
        [GROUP],
        [{"$limit": 5}, MATCH],
        [{"$limit": 5}, {"$skip": 5}],
        [{"$limit": 5}, {"$project": {"a": {"$divide": [1, "$b"]}}}],
        [{"$limit": 5}, {"$replaceRoot": {"newRoot": "$b"}}],
        [{"$limit": 5}, SORT],
        [SORT, {"$unwind": "$b"}],
        [{"$sample": {"size": 3}}],
        [NEAR],
        [{"$match": {"$text": {"$search": "a"}}}, {"$sort": {"a": {"$meta": "textScore"}}}],
        [{"$facet": {}}],
        [JOIN],
    ],
    ids=str,
)
def test_a_shard_has_to_merge(pipeline: Stages) -> None:
    assert RouterMerge.of(SplitPipeline.of(parsed(*pipeline))) is None
