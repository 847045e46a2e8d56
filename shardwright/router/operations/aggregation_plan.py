"""The plan of an aggregation: the shards' part, the merger, and the stages that the router runs.

`complete` runs the `PHASES` of planning in order. Each checks the pipeline or adds to the plan. The plan is then
executed (`operations.aggregation`), or described for ``explain``.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.cursor_opening import snapshot_of
from shardwright.router.operations.involved_collections import (
    Segment,
    check_out_targets,
    locate,
    merge_target,
    segments_of,
)
from shardwright.router.operations.listed_collection import effective_collation
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_documents import SHARDED_DATA_DISTRIBUTION, check_distribution
from shardwright.router.pipelines.commands import explained_split, merge_type, shards_for_pipeline
from shardwright.router.pipelines.router_merge import Counting, RouterMerge
from shardwright.router.pipelines.split import SplitPipeline
from shardwright.router.pipelines.stages import COLLECTIONLESS
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.find_arguments import collation_of
from shardwright.sharding.pipelines.pipeline import Pipeline, Stage


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A split pipeline. One of ``counting``, ``merge`` and ``segments`` defines the merge.

    Attributes:
        shards_part: the stages for each shard that has documents.
        sort: the order in which the results of the shards are merged, None for any.
        needs_merge: whether the shards return partial states or sort keys.
        counting: the router adds up the shards' counts.
        segments: shards merge. Each runs its stages on the results of the previous one, the first on the results of
            ``shards_part``.
    """

    shards_part: tuple[Stage, ...]
    merger_part: tuple[Stage, ...]
    sort: Mapping[str, int] | None = None
    needs_merge: bool = False
    counting: Counting | None = None
    merge: RouterMerge | None = None
    segments: tuple[Segment, ...] = ()


@dataclass(slots=True)
class AggregationPlan:
    """The way to run an aggregation. The phases set the attributes that have defaults.

    Attributes:
        pipeline: the stages, as one shard would receive them.
        ordered: the same with conditions moved forward.
        namespace: the namespace of the shards' cursors.
        routing: the routing of the collection; None without a collection.
        versions: the version elements for each shard that has documents; None until the shards are chosen.
        time: of the snapshot, None outside snapshots.
        target: the routing of the collection that the router writes; None if it writes none.
        by_router: the stages that the router runs after the pipeline: the ``$merge`` into ``target``, or joins.
        may_count: whether the router may add up the shards' counts, which makes up the whole first batch.
        split: None if one shard runs the whole pipeline.
    """

    operation: Operation
    pipeline: Pipeline
    ordered: Pipeline
    namespace: str
    routing: CollectionRouting | None = None
    versions: dict[str, bytes] | None = None
    time: Timestamp | None = None
    target: CollectionRouting | None = None
    by_router: tuple[Stage, ...] = ()
    may_count: bool = True
    split: SplitPlan | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that have documents."""
        return tuple(self.versions or ())

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Return ``mergeType`` and ``splitPipeline`` of a split pipeline for ``explain``."""
        assert self.split is not None
        merger_part = (*self.split.merger_part, *self.by_router)
        if self.by_router and self.by_router[-1].name == "$merge":
            merging = "anyShard"  # the shards of mongos execute the $merge in parallel
        else:
            may_spill = bool(self.operation.argument(b"allowDiskUse"))
            merging = merge_type(self.split.merger_part, may_spill=may_spill)
        return merging, explained_split(self.split.shards_part, merger_part, self.namespace, self.split.sort)


async def check_places(plan: AggregationPlan) -> None:
    """Refuse stages that cannot read a sharded collection."""
    if plan.routing is not None and plan.routing.is_sharded:
        check_distribution(plan.pipeline, plan.operation.request.db)


async def check_outs(plan: AggregationPlan) -> None:
    """Check the targets of ``$out``."""
    await check_out_targets(plan.operation, plan.pipeline)


async def check_source(plan: AggregationPlan) -> None:
    """Make a mongod refuse a source that cannot be on a collection."""
    if plan.routing is not None and plan.pipeline.first in COLLECTIONLESS:
        await check_pipeline(plan.operation)


async def take_merge(plan: AggregationPlan) -> None:
    """Leave a ``$merge`` into a sharded collection to the router; for any other, check the target's unique index."""
    target = await merge_target(plan.operation, plan.pipeline)
    if target is None:
        return
    stages = plan.ordered.stages
    if target.is_sharded:
        plan.target, plan.by_router = target, stages[-1:]
        plan.pipeline = plan.ordered = Pipeline(stages[:-1])
    elif isinstance(stages[-1].specification, Mapping) and "on" in stages[-1].specification:
        collation = await effective_collation(plan.operation, plan.routing)
        await check_pipeline(plan.operation, target.primary, collation=collation)


async def choose_shards(plan: AggregationPlan) -> None:
    """Target the shards that have documents. The aggregation that a ``$merge`` of the router reads has its own plan."""
    routing, request = plan.routing, plan.operation.request
    if plan.versions is not None or plan.target is not None:
        return
    assert routing is not None
    snapshot = snapshot_of(plan.operation, routing.table)
    plan.time = snapshot.reading
    shards = shards_for_pipeline(routing, plan.ordered, collation_of(request), snapshot.targeting)
    plan.versions = {shard: routing.versions_for(shard) for shard in shards}
    plan.may_count = len(shards) == 1 or batch_size(request) != 0


async def split(plan: AggregationPlan) -> None:
    """Split the pipeline unless one shard can run it whole.

    Raises:
        CommandError: a stage needs collections that are not on one shard.
    """
    if plan.versions is None:
        return
    pipeline, shards = plan.ordered, plan.shards
    if len(shards) == 1 or pipeline.first in COLLECTIONLESS:
        plan.split = await _split_for_one(plan.operation, pipeline, shards[0])
        return
    parts = SplitPipeline.of(pipeline)
    counting = Counting.of(pipeline) if plan.may_count else None
    merge = None if counting is not None else RouterMerge.of(parts)
    segments: tuple[Segment, ...] = ()
    if counting is None and merge is None:
        parts = parts.returning_needed_fields()
        segments = segments_of(await locate(plan.operation, parts.merger_part), shards)
    plan.split = SplitPlan(
        parts.shards_part, parts.merger_part, parts.sort, parts.needs_merge, counting, merge, segments
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of planning.

    Attributes:
        stages: the phase runs only for pipelines with one of these stages; None for all pipelines.
    """

    run: Callable[[AggregationPlan], Awaitable[None]]
    stages: frozenset[str] | None = None


PHASES: Final = (
    Phase(check_places, frozenset({SHARDED_DATA_DISTRIBUTION})),
    Phase(check_outs, frozenset({"$facet", "$out"})),
    Phase(check_source, COLLECTIONLESS),
    Phase(take_merge, frozenset({"$merge"})),
    Phase(choose_shards),
    Phase(split),
)
"""The phases of planning, in order."""


async def complete(plan: AggregationPlan) -> AggregationPlan:
    """Run the phases that the pipeline needs.

    Raises:
        JoinNeededError: no shard has all collections that the pipeline reads.
        CommandError: the pipeline is refused.
    """
    names = plan.pipeline.names
    for phase in PHASES:
        if phase.stages is None or not phase.stages.isdisjoint(names):
            await phase.run(plan)
    return plan


async def _split_for_one(operation: Operation, pipeline: Pipeline, shard: str) -> SplitPlan | None:
    """Split a pipeline for one shard before the first stage that needs collections of another shard."""
    located = await locate(operation, pipeline.stages)
    for at, stage in enumerate(located):
        if stage.shard not in (None, shard):
            stages = pipeline.stages
            return SplitPlan(stages[:at], stages[at:], segments=segments_of(located[at:], (shard,)))
    return None
