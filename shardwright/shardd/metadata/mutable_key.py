"""The part of a shard key that updates may change."""

from shardwright.sharding.shard_key import ShardKeyPattern


def mutable_part(pattern: ShardKeyPattern) -> ShardKeyPattern | None:
    """The fields of a shard key that mongod allows to change: all but those in ``_id``. None if there are none."""
    fields = tuple(each for each in pattern.fields if each.path[0] != b"_id")
    return ShardKeyPattern(pattern.document, fields) if fields else None
