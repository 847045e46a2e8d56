"""The shards that an aggregation targets."""

from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.pipeline_merge import PER_SHARD_SOURCES
from shardwright.router.reads.targeting import shards_for_read


def shards_for_pipeline(
    routing: CollectionRouting,
    pipeline: Pipeline,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """The shards that a pipeline reads: those its leading ``$match`` targets, or all for statistics of each shard."""
    if pipeline.first in PER_SHARD_SOURCES:
        return tuple(sorted(routing.shards))
    return shards_for_read(routing, pipeline.filter, collation, time)
