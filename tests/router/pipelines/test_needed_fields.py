"""The fields that shards return: the ones that the merger's part reads, and all of them wherever that is uncertain."""

from typing import Any

import pytest

from shardwright.router.pipelines.split import SplitPipeline
from tests.router.pipelines.parsing import decoded, parsed

Stages = list[dict[str, Any]]

GROUP: dict[str, Any] = {"$group": {"_id": "$g", "n": {"$sum": "$x.y"}}}
NESTED: dict[str, Any] = {"$map": {"input": "$a", "as": "v", "in": {"$add": ["$$v.x", "$q"]}}}


def stages_only(value: Stages | set[str]) -> str:
    """A test's name from its stages; the order of a set would differ from one process to the next."""
    return str(value) if isinstance(value, list) else "fields"


def returned(*stages: dict[str, Any]) -> set[str] | None:
    """The fields that shards return for a merger that runs some stages; None for whole documents."""
    split = SplitPipeline.of(parsed({"$limit": 2}, *stages)).returning_needed_fields()
    shards = decoded(split.shards_part)
    assert shards[0] == {"$limit": 2}
    if len(shards) == 1:
        return None
    [(name, fields)] = shards[1].items()
    assert name == "$project"
    assert all(fields[field] is (field != "_id") for field in fields if field != "_id")
    return {field for field, is_included in fields.items() if is_included}


def expression(made: object) -> Stages:
    """A pipeline that groups by an expression."""
    return [{"$group": {"_id": made}}]


@pytest.mark.parametrize(
    ("stages", "fields"),
    [
        ([GROUP], {"g", "x.y"}),
        (
            [{"$match": {"z": 1, "$or": [{"a.b": 1}, {"c": {"$elemMatch": {"d": 1}}}]}}, GROUP],
            {"g", "x.y", "z", "a.b", "c"},
        ),
        ([{"$match": {"a.0.b": 1}}, {"$count": "n"}], {"a"}),
        ([{"$match": {"$expr": {"$gt": ["$a", "$$ROOT.b.c"]}}}, {"$count": "n"}], {"a", "b.c"}),
        ([{"$sort": {"a": 1, "b.c": -1}}, {"$group": {"_id": None, "f": {"$first": "$d"}}}], {"a", "b.c", "d"}),
        ([{"$count": "n"}], {"_id"}),
        ([{"$project": {"a": 1, "b": "$c"}}], {"_id", "a", "c"}),
        ([{"$project": {"_id": 0, "a.b": 1, "d": {"e": "$f", "g": 1}}}], {"a.b", "d", "f"}),
        ([{"$project": {"a": {"$literal": "$b"}, "c": {"$meta": "textScore"}}}], {"_id"}),
        ([{"$project": {"b": 0}}, GROUP], {"g", "x.y"}),
        ([{"$unset": ["b", "c.d"]}, GROUP], {"g", "x.y"}),
        ([{"$addFields": {"b": "$a.d"}}, GROUP], {"a.d", "g", "x.y"}),
        ([{"$set": {"b.c": "$a.d", "e": {"f": 1}}}, GROUP], {"a.d", "b", "e", "g", "x.y"}),
        ([{"$unwind": {"path": "$b.c", "includeArrayIndex": "i"}}, GROUP], {"b.c", "g", "x.y"}),
        ([{"$replaceWith": "$b.c"}], {"b.c"}),
        ([{"$replaceRoot": {"newRoot": {"$mergeObjects": ["$a", {"x": "$b"}]}}}], {"a", "b"}),
        ([{"$sortByCount": "$a.b"}], {"a.b"}),
        ([{"$bucketAuto": {"groupBy": "$a", "buckets": 2, "output": {"n": {"$max": "$b"}}}}], {"a", "b"}),
        ([{"$unionWith": "other"}, GROUP], {"g", "x.y"}),
        ([{"$facet": {"one": [GROUP], "two": [{"$match": {"z": 1}}, {"$count": "n"}]}}], {"g", "x.y", "z"}),
        ([{"$lookup": {"from": "o", "localField": "a.b", "foreignField": "c", "as": "r"}}, GROUP], {"a.b", "g", "x.y"}),
        (
            [{"$lookup": {"from": "o", "let": {"v": "$q.z"}, "pipeline": [], "as": "r.s"}}, GROUP],
            {"q.z", "r", "g", "x.y"},
        ),
        (
            [
                {
                    "$graphLookup": {
                        "from": "o",
                        "startWith": "$s",
                        "connectFromField": "f",
                        "connectToField": "t",
                        "as": "r",
                    }
                },
                GROUP,
            ],
            {"s", "g", "x.y"},
        ),
        ([{"$densify": {"field": "a", "partitionByFields": ["b.c"], "range": {}}}, GROUP], {"a", "b.c", "g", "x.y"}),
        (
            [{"$setWindowFields": {"partitionBy": "$p", "sortBy": {"s": 1}, "output": {"r": {"$sum": "$v"}}}}, GROUP],
            {"p", "s", "v", "g", "x.y"},
        ),
        (
            [{"$group": {"_id": 1, "a": {"$topN": {"n": 1, "output": ["$b", "$c"], "sortBy": {"s.t": 1}}}}}],
            {"b", "c", "s.t"},
        ),
        (expression({"$let": {"vars": {"v": "$a.b"}, "in": "$$v.c"}}), {"a.b"}),
        (expression(NESTED), {"a", "q"}),
        (expression({"$getField": {"field": "a", "input": "$b"}}), {"b"}),
        (expression("$$NOW"), {"_id"}),
        (expression(["$a", {"b": "$a.b"}]), {"a"}),
    ],
    ids=stages_only,
)
def test_fields_that_a_merger_reads(stages: Stages, fields: set[str]) -> None:
    assert returned(*stages) == fields


@pytest.mark.parametrize(
    "stages",
    [
        [{"$sort": {"a": 1}}],
        [{"$addFields": {"a": 1}}, {"$sort": {"a": 1}}],
        [{"$project": {"a": 0}}, {"$sort": {"a": 1}}],
        expression("$$ROOT"),
        expression("$$CURRENT"),
        expression({"$getField": "a"}),
        expression("$"),
        expression("$.b"),
        [{"$group": {"_id": 1, "all": {"$push": "$$ROOT"}}}],
        [{"$match": {"$where": "true"}}, GROUP],
        [{"$match": {"$jsonSchema": {}}}, GROUP],
        [{"$redact": "$$KEEP"}, GROUP],
        [{"$facet": {"one": [GROUP], "two": [{"$sort": {"a": 1}}]}}],
        [{"$out": "written"}],
        [{"$unknown": 1}, GROUP],
    ],
    ids=str,
)
def test_mergers_that_need_whole_documents(stages: Stages) -> None:
    assert returned(*stages) is None


@pytest.mark.parametrize("reducing", [{"$project": {"a": 1}}, {"$replaceWith": "$a"}], ids=str)
def test_documents_that_are_reduced_already_stay_as_they_are(reducing: dict[str, Any]) -> None:
    split = SplitPipeline.of(parsed(reducing, {"$limit": 2}, GROUP)).returning_needed_fields()
    assert decoded(split.shards_part) == [reducing, {"$limit": 2}]


def test_stages_that_are_nested_too_deep_are_left_to_mongod() -> None:
    deep: object = "$a"
    for _ in range(400):
        deep = {"$abs": deep}
    assert returned(*expression(deep)) is None
