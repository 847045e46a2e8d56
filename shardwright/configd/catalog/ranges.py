"""Ranges in the arguments of commands."""

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def parse_range(pattern: ShardKeyPattern, low: bytes, high: bytes) -> ChunkRange:
    """The range between two bounds.

    Raises:
        CommandError: FailedToParse, the range is empty.
    """
    if pattern.key_bytes(low) >= pattern.key_bytes(high):
        raise CommandError(
            ErrorCode.FailedToParse, f"min: {document_text(low)} should be less than max: {document_text(high)}"
        )
    return ChunkRange.of(pattern, low, high)
