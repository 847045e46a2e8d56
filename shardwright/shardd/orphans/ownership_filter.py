"""The filter that hides documents in orphan ranges from operations."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from shardwright.shardd.orphans.key_expressions import Expression, has_strings, is_below, shard_key
from shardwright.shardd.orphans.orphan_ranges import extended, merged
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.collation import is_simple
from shardwright.wire.rawbson import encode_elements, from_elements

KEY_VARIABLE: Final = "ownedShardKey"
"""The name by which filters are recognised in replies that show queries."""

COMPLETE_KEY_VARIABLE: Final = "ownedShardKeyOnly"
"""The name in complete filters."""


class OwnershipFilter:
    """Decides which documents of a collection are orphans, here and as a query.

    Args:
        pattern: the shard key.
        ranges: the ranges that may hold orphans, sorted, without overlap.
        default_collation: the collection's default collation.
        is_complete: whether the ranges are everything that the shard does not own, so that an operation with this
            filter cannot see anything that arrives later.
    """

    def __init__(
        self,
        pattern: ShardKeyPattern,
        ranges: Sequence[ChunkRange],
        default_collation: Mapping[str, Any] | None,
        *,
        is_complete: bool = False,
    ) -> None:
        self.pattern = pattern
        self.ranges = tuple(ranges)
        self.default_collation = default_collation
        self._min_keys = [each.min_key for each in ranges]
        self.is_complete = is_complete
        self._variable = COMPLETE_KEY_VARIABLE if is_complete else KEY_VARIABLE

    def is_orphan(self, key: bytes) -> bool:
        """Whether a document with this encoded shard key is an orphan."""
        position = bisect_right(self._min_keys, key) - 1
        return position >= 0 and self._is_below_max(key, self.ranges[position])

    def covers(self, document: bytes) -> bool:
        """Whether a raw document, or just its shard key, is in one of the ranges."""
        return self.is_orphan(self.pattern.key_bytes_of_document(document))

    def overlaps(self, low: bytes, high: bytes) -> bool:
        """Whether a key between two bounds, which may be any byte strings, can be that of an orphan."""
        # The ranges are disjoint, so the last one that begins below `high` also ends last.
        position = bisect_left(self._min_keys, high) - 1
        return position >= 0 and low < self.ranges[position].max_key

    def merged_with(self, later: "OwnershipFilter") -> "OwnershipFilter":
        """A filter for the ranges of both, as few as possible; this one if it has all of them already.

        Args:
            later: another filter of the same collection. Its shard key may refine the one of this filter.
        """
        own = self.ranges
        if later.pattern.document != self.pattern.document:
            own = tuple(extended(each.min, each.max, later.pattern) for each in own)
        ranges = merged((*own, *later.ranges))
        return self if ranges == self.ranges else OwnershipFilter(later.pattern, ranges, later.default_collation)

    def element(self, collation: Mapping[str, Any] | None) -> bytes:
        """The ``$expr`` element to add to a query, so that it does not match orphans.

        A query may contain several elements of that name; all of them have to be true.

        Args:
            collation: the collation in force: the operation's, or else the collection's.
        """
        return self._element if is_simple(collation) or not self.depends_on_collation else self._collated_element

    def query(self, collation: Mapping[str, Any] | None) -> bytes:
        """A query that matches all documents except orphans."""
        return from_elements(self.element(collation))

    @cached_property
    def depends_on_collation(self) -> bool:
        """Whether `element` differs between the simple collation and others."""
        return any(has_strings(each.min) or has_strings(each.max) for each in self.ranges)

    @cached_property
    def _element(self) -> bytes:
        return encode_elements({"$expr": self._expression(is_collated=False)})

    @cached_property
    def _collated_element(self) -> bytes:
        return encode_elements({"$expr": self._expression(is_collated=True)})

    def _expression(self, *, is_collated: bool) -> Expression:
        key = {self._variable: shard_key(self.pattern)}
        return {"$let": {"vars": key, "in": self._decide(0, len(self.ranges), is_collated=is_collated)}}

    def _decide(self, first: int, end: int, *, is_collated: bool) -> Expression:
        """An expression that is true if a key is in none of the ranges from ``first`` to ``end``: a bisection."""
        if first == end:
            return True
        key = f"$${self._variable}"
        middle = (first + end) // 2
        range_ = self.ranges[middle]
        before = self._decide(first, middle, is_collated=is_collated)
        behind = self._decide(middle + 1, end, is_collated=is_collated)
        if range_.max_key != self.pattern.global_max_bytes():  # no key is above it
            behind = {"$cond": [is_below(key, range_.max, is_collated=is_collated), False, behind]}
        else:
            behind = False
        if range_.min_key == self.pattern.global_min_bytes():
            return behind
        return {"$cond": [is_below(key, range_.min, is_collated=is_collated), before, behind]}

    def _is_below_max(self, key: bytes, range_: ChunkRange) -> bool:
        return key < range_.max_key or range_.max_key == self.pattern.global_max_bytes()


def has_complete_filter(query: Mapping[str, Any]) -> bool:
    """Whether a query contains a complete filter."""
    expression: Any = query
    for name in ("$expr", "$let", "vars"):
        expression = expression.get(name)
        if not isinstance(expression, Mapping):
            return False
    return COMPLETE_KEY_VARIABLE in expression
