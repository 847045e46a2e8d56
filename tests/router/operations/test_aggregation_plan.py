"""Planning of aggregations: the merger of a pipeline, and its description for ``explain``."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from shardwright.router.operations.aggregation_plan import AggregationPlan, split
from shardwright.router.operations.operation import Operation
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.sharding.pipelines.pushdown import moved_forward
from tests.router.reads.requests import request

if TYPE_CHECKING:
    from shardwright.router.context.router_context import RouterContext


class WithoutCollections:
    """A context whose routing is not needed: the stages name no other collection."""

    routing = None
    sender = None


SHARDS = ("shard0", "shard1")
MATCH: dict[str, Any] = {"$match": {"a": 1}}
SORT: dict[str, Any] = {"$sort": {"a": 1}}
GROUP: dict[str, Any] = {"$group": {"_id": "$a", "n": {"$sum": 1}}}


async def planned(stages: list[dict[str, Any]], shards: tuple[str, ...] = SHARDS, **fields: Any) -> AggregationPlan:  # noqa: ANN401 - as AggregationPlan
    aggregate = request({"aggregate": "c", "pipeline": stages, "cursor": {}})
    operation = Operation.of_router(cast("RouterContext", WithoutCollections()), aggregate)
    pipeline = moved_forward(Pipeline.parse(aggregate))
    plan = AggregationPlan(operation, pipeline, pipeline, "test.c", versions=dict.fromkeys(shards, b""), **fields)
    await split(plan)
    return plan


@pytest.mark.parametrize(
    ("stages", "merger"),
    [
        ([MATCH], "the router"),
        ([SORT, {"$skip": 2}, {"$limit": 3}], "the router"),
        ([MATCH, {"$count": "n"}], "the router, which counts"),
        ([GROUP], "a shard"),
        ([SORT, GROUP, SORT], "a shard"),
    ],
)
async def test_the_merger_of_a_pipeline_over_several_shards(stages: list[dict[str, Any]], merger: str) -> None:
    parts = (await planned(stages)).split
    assert parts is not None
    found = {
        "the router": parts.merge is not None,
        "the router, which counts": parts.counting is not None,
        "a shard": bool(parts.segments),
    }
    assert [name for name, is_meant in found.items() if is_meant] == [merger]


async def test_one_shard_runs_a_whole_pipeline() -> None:
    assert (await planned([SORT, GROUP], ("shard0",))).split is None


async def test_counts_are_not_added_up_for_an_empty_first_batch() -> None:
    parts = (await planned([{"$count": "n"}], may_count=False)).split
    assert parts is not None
    assert (parts.counting, len(parts.segments)) == (None, 1)


async def test_a_plan_describes_both_parts_and_the_stages_of_the_router() -> None:
    plan = await planned([MATCH, SORT, {"$limit": 3}])
    merging, parts = plan.describe()
    assert merging == "mongos"
    assert [next(iter(stage)) for stage in parts["shardsPart"]] == ["$match", "$sort", "$limit"]
    assert [next(iter(stage)) for stage in parts["mergerPart"]] == ["$mergeCursors", "$limit"]
    [merge] = Pipeline.parse(request({"aggregate": "c", "pipeline": [{"$merge": "d"}]})).stages
    plan.by_router = (merge,)
    merging, parts = plan.describe()
    assert merging == "anyShard"
    assert parts["mergerPart"][-1] == {"$merge": "d"}
