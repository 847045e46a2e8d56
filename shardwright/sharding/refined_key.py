"""Refining a shard key: fields are added at its end, and every bound is extended so that no document changes its place.

A bound ``{a: 5}`` becomes ``{a: 5, b: MinKey}``, which lies below all documents with ``a: 5``. Only the very end of the
key space is extended with MaxKey, so that it remains the end.
"""

from collections.abc import Iterable
from dataclasses import replace

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.chunk_changes import ChunkChanges
from shardwright.sharding.chunks import Chunk
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson


def is_extended_by(old: ShardKeyPattern, new: ShardKeyPattern) -> bool:
    """Whether the fields of ``old`` are the first of ``new``, hashed where they are hashed."""
    return new.fields[: len(old.fields)] == old.fields


def extend_bound(bound: bytes, pattern: ShardKeyPattern) -> bytes:
    """A bound of a shorter shard key, of a chunk, a zone or a range deletion, as one of a key that extends it.

    A bound that has all fields already is returned as it is.

    Raises:
        CommandError: BadValue, the fields of the bound are not the first of the pattern.
    """
    is_end = all(kind == rawbson.MAX_KEY for _, (kind, *_) in rawbson.spans(bound))
    return pattern.extend_range_bound(bound, upper_inclusive=is_end)


def refine_chunks(
    chunks: Iterable[Chunk], pattern: ShardKeyPattern, *, epoch: ObjectId, timestamp: Timestamp
) -> ChunkChanges:
    """All chunks of a collection with bounds of a key that extends the present one.

    They keep their places in the order of versions, but under another epoch and timestamp. None is jumbo any more, as
    it may be possible to split them by the added fields.

    Args:
        chunks: all chunks of the collection.
        pattern: the new key.
        epoch: the collection's new epoch.
        timestamp: the collection's new timestamp.
    """
    return ChunkChanges(
        tuple(
            replace(
                chunk,
                min=extend_bound(chunk.min, pattern),
                max=extend_bound(chunk.max, pattern),
                version=ChunkVersion(chunk.version.major, chunk.version.minor, epoch, timestamp),
                jumbo=None,
            )
            for chunk in chunks
        )
    )
