"""From ranges of the shard key to the shards that own them."""

from collections.abc import Set
from typing import Protocol

from sharding.shard_key import ShardKeyPattern
from sharding.targeting.filters import KeyRanges, key_ranges


class Placement(Protocol):
    """What targeting needs of a routing table."""

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key of the collection."""

    @property
    def shards(self) -> Set[str]:
        """The shards that own at least one chunk."""

    def shard_for_key(self, key: bytes) -> str:
        """The shard that owns the key with these bytes."""

    def shards_for_range(self, low: bytes, high: bytes) -> Set[str]:
        """The shards that own a part of ``[low, high)``."""


def target_filter(filter_document: bytes, placement: Placement, *, simple_collation: bool = True) -> Set[str]:
    """The shards that may hold matches of a filter; one of them, whichever, if nothing can match.

    Args:
        filter_document: the filter as raw BSON.
        placement: where the chunks of the collection are.
        simple_collation: whether the effective collation compares strings as bytes.
    """
    ranges = key_ranges(filter_document, placement.key_pattern, simple_collation=simple_collation)
    return target_ranges(ranges, placement)


def target_ranges(ranges: KeyRanges, placement: Placement) -> Set[str]:
    """The shards that own keys in the ranges.

    Where there are no ranges it is the shard of the first chunk, as in mongos: somebody has to answer, if only with an
    empty cursor or the error that the filter deserves.
    """
    if ranges.point is not None:
        return {placement.shard_for_key(ranges.point)}
    if ranges.is_everything:
        return placement.shards
    if not ranges.ranges:
        return {placement.shard_for_key(placement.key_pattern.global_min_bytes())}
    found: set[str] = set()
    for low, high in ranges.ranges:
        found |= placement.shards_for_range(low, high)
        if len(found) == len(placement.shards):
            break
    return found
