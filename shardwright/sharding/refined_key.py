"""Refining a shard key: fields are added at its end, and every bound is extended so that no document moves.

A bound ``{a: 5}`` becomes ``{a: 5, b: MinKey}``, which lies below all documents with ``a: 5``. Only the very end of the
key space is extended with MaxKey, so that it remains the end.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.sharding.chunks import Chunk, ChunkPlacement
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson


def is_extended_by(old: ShardKeyPattern, new: ShardKeyPattern) -> bool:
    """Whether the fields of ``old`` are the first of ``new``, hashed where they are hashed."""
    return new.fields[: len(old.fields)] == old.fields


def extend_bound(bound: bytes, pattern: ShardKeyPattern) -> bytes:
    """Extend a bound of a chunk, zone or range deletion from a shorter shard key to a key that extends it.

    A bound with all fields is returned unchanged. Raises BadValue if its fields are not the first of the pattern.
    """
    is_end = all(kind == rawbson.MAX_KEY for _, (kind, *_) in rawbson.spans(bound))
    return pattern.extend_range_bound(bound, upper_inclusive=is_end)


def refined_chunk(chunk: Chunk, pattern: ShardKeyPattern) -> Chunk:
    """Extend the bounds of a chunk from a shorter key to ``pattern``, if necessary."""
    return replace(chunk, min=extend_bound(chunk.min, pattern), max=extend_bound(chunk.max, pattern))


def refined_placement(chunk: ChunkPlacement, pattern: ShardKeyPattern) -> ChunkPlacement:
    """Extend the bounds of a placement, as `refined_chunk`."""
    return chunk._replace(min=extend_bound(chunk.min, pattern), max=extend_bound(chunk.max, pattern))


def chunks_to_refine(uuid: UUID, pattern: ShardKeyPattern) -> dict[str, Any]:
    """Build the query for the chunks of a collection whose bounds lack fields of the key."""
    return {"uuid": Binary.from_uuid(uuid), **bounds_to_refine(pattern)}


def bounds_to_refine(pattern: ShardKeyPattern) -> dict[str, Any]:
    """Build the condition that the bounds of a chunk or a zone lack fields of the key."""
    last = {"$getField": {"field": {"$literal": pattern.fields[-1].name.decode()}, "input": "$min"}}
    return {"$expr": {"$eq": [{"$type": last}, "missing"]}}


def chunk_update(old: ShardKeyPattern, new: ShardKeyPattern) -> list[dict[str, Any]]:
    """Build the pipeline that extends one chunk document, as `zone_update`.

    The chunks keep their versions, but lose the jumbo flag, because the added fields may make them splittable.
    """
    return [*zone_update(old, new), {"$unset": "jumbo"}]


def zone_update(old: ShardKeyPattern, new: ShardKeyPattern) -> list[dict[str, Any]]:
    """Build the pipeline that extends the bounds of one document from ``old`` to ``new``, as `extend_bound` does."""
    added = [field.name.decode() for field in new.fields[len(old.fields) :]]
    end = {field.name.decode(): MaxKey() for field in old.fields}
    whole_end = end | {name: MaxKey() for name in added}
    is_end = {"$eq": ["$max", {"$literal": end}]}
    return [
        {
            "$set": {
                "min": _with_least("$min", added),
                "max": {"$cond": [is_end, {"$literal": whole_end}, _with_least("$max", added)]},
            }
        }
    ]


def _with_least(bound: str, added: Iterable[str]) -> object:
    extended: object = bound
    for name in added:
        extended = {"$setField": {"field": {"$literal": name}, "input": extended, "value": MinKey()}}
    return extended
