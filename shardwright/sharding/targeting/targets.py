"""Owners of ranges of the shard key, or of one key, now or at an earlier time (``atClusterTime``, `placement_at`)."""

from collections.abc import Set
from functools import cached_property
from typing import Protocol

from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import KeyRanges, key_ranges, only_key
from shardwright.sharding.targeting.values import uncollated_field
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class Placement(Protocol):
    """The interface of a routing table for targeting."""

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key of the collection."""

    @property
    def shards(self) -> Set[str]:
        """Shards that own at least one chunk."""

    def shard_for_key(self, key: bytes) -> str:
        """Return the shard that owns the key with these bytes."""

    def shards_for_range(self, low: bytes, high: bytes) -> Set[str]:
        """Return the shards that own a part of ``[low, high)``."""


class CollectionPlacement(Placement, Protocol):
    """The interface of a routing table for targeting a write."""

    @property
    def collection(self) -> ShardedCollection:
        """The collection, apart from its chunks."""

    @property
    def namespace(self) -> Namespace:
        """Name of the collection."""


def target_filter(filter_document: bytes, placement: Placement, *, simple_collation: bool = True) -> Set[str]:
    """Return the shards that may have matches of a filter; an arbitrary one if nothing can match."""
    pattern = placement.key_pattern
    if simple_collation:
        key = only_key(filter_document, pattern)
        if key is not None:
            return {placement.shard_for_key(key)}
    ranges = key_ranges(filter_document, pattern, simple_collation=simple_collation)
    return target_ranges(ranges, placement)


def target_ranges(ranges: KeyRanges, placement: Placement) -> Set[str]:
    """Return the shards that own keys in the ranges.

    Without ranges it is the shard of the first chunk, as in mongos. Some shard has to answer, if only with an empty
    cursor or an error for the filter.
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


def target_shard_key(key: bytes, placement: Placement, namespace: str, *, simple_collation: bool = True) -> str:
    """Return the shard that owns one shard key, given as a shard key document.

    Raises ShardKeyNotFound if the key depends on collation, or no chunk can contain it; the message names
    ``namespace``.
    """
    pattern = placement.key_pattern
    if not simple_collation:
        field = uncollated_field(pattern, key)
        if field is not None:
            raise CommandError(
                ErrorCode.ShardKeyNotFound,
                f"Cannot target single shard due to collation of key {field} for namespace {namespace}",
            )
    encoded = pattern.key_bytes(key)
    if encoded == pattern.global_max_bytes():
        raise beyond_all_chunks(key, namespace)
    return placement.shard_for_key(encoded)


def beyond_all_chunks(key: bytes, namespace: str) -> CommandError:
    """Build the error for a key of only MaxKey. The last chunk ends before it, so MongoDB stores no such document."""
    return CommandError(
        ErrorCode.ShardKeyNotFound,
        f"Cannot target single shard using key {document_text(key)} for namespace {namespace}",
    )


class PastPlacement:
    """A routing table as of a time, with the interface that `sharding.targeting` needs.

    Every method raises StaleChunkHistory if the catalog has dropped the history of a relevant chunk.
    """

    def __init__(self, table: RoutingTable, time: Timestamp) -> None:
        self._table = table
        self._time = time

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key of the collection."""
        return self._table.key_pattern

    @cached_property
    def shards(self) -> frozenset[str]:
        """Shards that owned at least one chunk."""
        pattern = self.key_pattern
        return frozenset(self.shards_for_range(pattern.global_min_bytes(), pattern.global_max_bytes()))

    def shard_for_key(self, key: bytes) -> str:
        """Return the shard that owned the key with these bytes."""
        return self._table.shard_for_key_at(key, self._time)

    def shards_for_range(self, low: bytes, high: bytes) -> set[str]:
        """Return the shards that owned a part of ``[low, high)``."""
        return self._table.shards_for_range_at(low, high, self._time)


def placement_at(table: RoutingTable, time: Timestamp) -> Placement:
    """Return the placement of a table's chunks at a time: the table itself unless a chunk has moved since."""
    return table if pack_timestamp(time) >= table.newest_valid_after else PastPlacement(table, time)
