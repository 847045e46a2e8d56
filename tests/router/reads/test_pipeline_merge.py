"""Which pipelines the router merges by itself, and how it takes them apart."""

from typing import Any

import bson
import pytest

from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.pipeline_merge import MergeablePipeline
from shardwright.router.reads.sort_order import SortOrder
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request

COUNTING = {"$group": {"_id": 1, "n": {"$sum": 1}}}


def parsed(*stages: object) -> Pipeline:
    return Pipeline.parse(request({"aggregate": "c", "pipeline": list(stages), "cursor": {}}))


def mergeable(*stages: dict[str, Any]) -> MergeablePipeline:
    found = MergeablePipeline.of(parsed(*stages))
    assert found is not None
    return found


def on_shards(found: MergeablePipeline) -> list[dict[str, Any]]:
    return [bson.decode(stage) for stage in found.shard_stages]


def test_stages_on_single_documents_run_on_the_shards() -> None:
    stages: list[dict[str, Any]] = [{"$match": {"a": 1}}, {"$unwind": "$b"}, {"$project": {"b": 1}}]
    found = mergeable(*stages)
    assert on_shards(found) == stages
    assert (found.order, found.skip, found.limit, found.count_field) == (None, 0, 0, None)


def test_a_sort_with_skip_and_limit_merges_like_a_find() -> None:
    found = mergeable({"$match": {}}, {"$sort": {"a": -1}}, {"$skip": 5}, {"$limit": 10}, {"$project": {"b": 1}})
    assert on_shards(found) == [{"$match": {}}, {"$sort": {"a": -1}}, {"$limit": 15}, {"$project": {"b": 1}}]
    assert (found.order, found.skip, found.limit) == (SortOrder((True,)), 5, 10)
    assert found.merger_stages == [{"$sort": {"$sortKey": 1}}, {"$skip": 5}, {"$limit": 10}]


@pytest.mark.parametrize(
    "stage",
    [
        COUNTING,
        {"$group": {"_id": None, "n": {"$sum": 1}}},
        {"$group": {"_id": 1, "n": {"$count": {}}}},
        {"$count": "n"},
    ],
)
def test_counts_of_shards_are_added_up(stage: dict[str, Any]) -> None:
    found = mergeable({"$match": {"a": 1}}, stage)
    assert on_shards(found) == [{"$match": {"a": 1}}, stage]
    total = found.total([3, 0, 4])
    assert total is not None
    assert total["n"] == 7
    assert list(total) == (["n"] if "$count" in stage else ["_id", "n"])
    assert found.total([0, 0]) is None


def test_a_count_skips_and_limits_what_all_shards_have() -> None:
    found = mergeable({"$match": {}}, {"$skip": 10}, {"$limit": 20}, COUNTING)
    assert on_shards(found) == [{"$match": {}}, {"$limit": 30}, COUNTING]
    assert found.total([15, 30]) == {"_id": 1, "n": 20}
    assert found.total([5, 8]) == {"_id": 1, "n": 3}
    assert found.total([5, 2]) is None


@pytest.mark.parametrize(
    "stages",
    [
        [{"$group": {"_id": "$a", "n": {"$sum": 1}}}],
        [{"$group": {"_id": None, "n": {"$sum": "$a"}}}],
        [{"$group": {"_id": None, "n": {"$sum": True}}}],
        [{"$group": {"_id": None, "n": {"$sum": 1}, "m": {"$sum": 1}}}],
        [{"$sort": {"a": 1}}, COUNTING],
        [COUNTING, {"$match": {}}],
        [{"$limit": 5}, {"$match": {}}],
        [{"$limit": 5}, {"$skip": 5}],
        [{"$limit": 0}],
        [{"$skip": -1}],
        [{"$sort": {"$natural": 1}}],
        [{"$sort": 5}],
        [{"$lookup": {"from": "d", "as": "x", "pipeline": []}}],
        [{"$out": "d"}],
        [{"$facet": {}}],
        [{"$match": {}}, {"$collStats": {}}],
        [{"$unknown": {}}],
    ],
)
def test_everything_else_is_not_merged(stages: list[dict[str, Any]]) -> None:
    assert MergeablePipeline.of(parsed(*stages)) is None


def test_the_leading_match_decides_where_a_pipeline_goes() -> None:
    assert bson.decode(parsed({"$match": {"k": 1}}, {"$match": {"k": 2}}).filter) == {"k": 1}
    assert bson.decode(parsed({"$sort": {"k": 1}}, {"$match": {"k": 2}}).filter) == {}
    assert bson.decode(parsed({"$match": 3}).filter) == {}


def test_collections_that_stages_name() -> None:
    stages: list[dict[str, Any]] = [
        {"$match": {"from": "d"}},
        {"$unionWith": "d"},
        {"$out": {"db": "other", "coll": "e"}},
    ]
    assert parsed(*stages).involved_namespaces("test") == {"test.d": False, "other.e": True}
    assert parsed(stages[0]).involved_namespaces("test") == {}


@pytest.mark.parametrize(
    ("pipeline", "code"), [(3, 14), ([3], 14), ([{}], 40323), ([{"$match": {}, "$sort": {}}], 40323), (None, 14)]
)
def test_a_malformed_pipeline_is_refused(pipeline: object, code: int) -> None:
    with pytest.raises(CommandError) as refused:
        Pipeline.parse(request({"aggregate": "c", "pipeline": pipeline}))
    assert refused.value.code == code


def test_a_missing_pipeline_is_refused() -> None:
    with pytest.raises(CommandError, match=r"aggregate\.pipeline' is missing"):
        Pipeline.parse(request({"aggregate": "c"}))
