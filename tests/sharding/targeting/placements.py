"""Routing tables for targeting tests: one chunk per shard."""

from dataclasses import replace
from itertools import pairwise

from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from tests.sharding.chunk_worlds import COLLECTION


def split_at(pattern: ShardKeyPattern, splits: list[bytes]) -> RoutingTable:
    """A table with the first chunk on shard ``s0``, the next on ``s1`` and so on.

    Args:
        pattern: the shard key.
        splits: shard key documents where one chunk ends and the next begins, in any order, possibly repeated.
    """
    unique = {pattern.key_bytes(each): each for each in (pattern.global_min(), *splits)}
    bounds = [unique[each] for each in sorted(unique)] + [pattern.global_max()]
    chunks = [
        ChunkPlacement(low, high, f"s{position}", (1 << 32) + position, ())
        for position, (low, high) in enumerate(pairwise(bounds))
    ]
    return RoutingTable.build(replace(COLLECTION, key_pattern=pattern), chunks)
