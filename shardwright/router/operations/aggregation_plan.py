"""How an aggregation is divided: what the shards run, and who merges their results."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.pipeline_locations import LocatedStage, locate
from shardwright.router.pipelines.counting import Counting
from shardwright.router.pipelines.router_merge import RouterMerge
from shardwright.router.pipelines.split import SplitPipeline
from shardwright.router.pipelines.stages import COLLECTIONLESS, WRITING
from shardwright.router.reads.pipeline import Pipeline, Stage


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages that one shard runs on the results of others.

    Attributes:
        shard: the shard.
        stages: the stages.
    """

    shard: str
    stages: tuple[Stage, ...]

    @property
    def is_writing(self) -> bool:
        """Whether it has a ``$out`` or a ``$merge``."""
        return any(stage.name in WRITING for stage in self.stages)


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """A divided pipeline. One of `counting`, `merge` and `segments` says who merges.

    Attributes:
        shards_part: the stages for each shard that has documents.
        merger_part: the stages behind.
        sort: the order in which the results of the shards are merged, None for any.
        needs_merge: the shards return partial states or sort keys.
        counting: the router adds up what the shards count.
        merge: the router merges.
        segments: shards merge: each runs its stages on the results of the one before, the first on those of the
            shards' part.
    """

    shards_part: tuple[Stage, ...]
    merger_part: tuple[Stage, ...]
    sort: Mapping[str, int] | None = None
    needs_merge: bool = False
    counting: Counting | None = None
    merge: RouterMerge | None = None
    segments: tuple[Segment, ...] = ()


async def plan_aggregation(
    operation: Operation, pipeline: Pipeline, shards: Sequence[str], *, may_count: bool = True
) -> AggregationPlan | None:
    """How to divide a pipeline; None if one shard can run it whole.

    Args:
        operation: the aggregation.
        pipeline: its pipeline.
        shards: the shards that it targets.
        may_count: whether the router may add up what shards count; that is the whole first batch.

    Raises:
        CommandError: a stage needs collections that are not on one shard; or the config servers did not answer.
    """
    if len(shards) == 1 or pipeline.first in COLLECTIONLESS:
        return await _plan_for_one(operation, pipeline, shards[0])
    split = SplitPipeline.of(pipeline)
    counting = Counting.of(pipeline) if may_count else None
    merge = None if counting is not None else RouterMerge.of(split)
    segments: tuple[Segment, ...] = ()
    if counting is None and merge is None:
        split = split.returning_needed_fields()
        segments = segments_of(await locate(operation, split.merger_part), shards)
    return AggregationPlan(
        split.shards_part, split.merger_part, split.sort, split.needs_merge, counting, merge, segments
    )


async def _plan_for_one(operation: Operation, pipeline: Pipeline, shard: str) -> AggregationPlan | None:
    """The shard runs the stages before the first that needs collections of another shard."""
    located = await locate(operation, pipeline.stages)
    for at, stage in enumerate(located):
        if stage.shard not in (None, shard):
            stages = pipeline.stages
            return AggregationPlan(stages[:at], stages[at:], segments=segments_of(located[at:], (shard,)))
    return None


def segments_of(stages: Sequence[LocatedStage], anywhere: Sequence[str]) -> tuple[Segment, ...]:
    """The segments that stages form: as few as possible, each on the shard that has the collections of its stages.

    Args:
        stages: the merger's part.
        anywhere: the shards to choose from where it does not matter.

    Raises:
        CommandError: as `LocatedStage.shard`.
    """
    segments: list[tuple[str | None, list[Stage]]] = [(None, [])]
    for located in stages:
        shard, held = segments[-1]
        wanted = located.shard
        if wanted is not None and shard not in (None, wanted):
            segments.append((wanted, [located.stage]))
        else:
            held.append(located.stage)
            segments[-1] = (shard or wanted, held)
    return tuple(Segment(shard or random.choice(anywhere), tuple(held)) for shard, held in segments)
