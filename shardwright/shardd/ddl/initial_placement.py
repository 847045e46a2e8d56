"""Gathering the facts that determine a collection's first chunks; `sharding.initial_chunks` decides."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding import initial_chunks
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.initial_chunks import InitialPlacement, PlannedChunk
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import decode_document, encode_document


async def plan_initial_chunks(
    context: ShardContext,
    namespace: Namespace,
    pattern: ShardKeyPattern,
    arguments: Mapping[str, Any],
    *,
    is_empty: bool,
) -> Sequence[PlannedChunk]:
    """The first chunks of a collection that this shard, its database's primary shard, is about to shard.

    Raises:
        CommandError: InvalidOptions and others, the options contradict one another or the zones.
    """
    catalog = await context.catalog()
    shards = await catalog.shards()
    documents = await catalog.find("tags", {"ns": str(namespace)}, sort={"min": 1})
    tags = [TagEntry.from_document(decode_document(each)) for each in documents]
    for tag in tags:
        tag.check_fits(pattern)
    shards_of_zone: dict[str, list[str]] = {}
    for shard_id, entry in shards.items():
        for zone in entry.tags:
            shards_of_zone.setdefault(zone, []).append(shard_id)
    points = arguments.get("initialSplitPoints")
    placement = InitialPlacement(
        pattern=pattern,
        primary_shard=context.require_identity().shard_name,
        shards=[shard_id for shard_id, entry in shards.items() if not entry.is_draining],
        is_empty=is_empty,
        zones=[tag.zone_range(pattern) for tag in tags],
        shards_of_zone=shards_of_zone,
        num_initial_chunks=int(arguments.get("numInitialChunks") or 0),
        presplit_hashed_zones=bool(arguments.get("presplitHashedZones", False)),
        split_points=None if points is None else [encode_document(point) for point in points],
    )
    return initial_chunks.plan_initial_chunks(placement)
