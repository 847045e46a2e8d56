"""What is decided about a small chunk, for the defragmentation itself and for its explanation."""

from collections.abc import Sequence

from shardwright.configd.balancer.defragmentation.situation import Situation
from shardwright.sharding.balancing.decisions import Rule, Skipped
from shardwright.sharding.balancing.defragmentation import MeasuredChunk, Union, choose_union
from shardwright.sharding.balancing.defragmentation_decisions import UNKNOWN_SHARD, stays, why_alone


def decide_about_small(
    situation: Situation, chunk: MeasuredChunk, neighbours: Sequence[MeasuredChunk]
) -> Union | Skipped:
    """What to do about a small chunk, or why it stays as it is."""
    zones, namespace = situation.zones, situation.entry.namespace
    if chunk.shard not in situation.shards:
        return stays(namespace, chunk, zones, Rule.MOVE_AND_MERGE, UNKNOWN_SHARD)
    union = choose_union(chunk, neighbours, zones, situation.may_receive, situation.threshold)
    return union or stays(namespace, chunk, zones, Rule.MOVE_AND_MERGE, why_alone(chunk, neighbours, zones))
