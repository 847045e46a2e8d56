"""Sets of values of one shard key field, as sorted disjoint intervals of their order-preserving bytes.

An interval ``(low, high)`` is half-open: all values, and all compound keys, whose bytes are in ``[low, high)``. No
value's encoding is followed by ``AFTER`` inside another's. So one value is ``(encoding, encoding + AFTER)``, and every
kind of bound of a query fits the half-open form.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

from shardwright.sharding.key_order import AFTER, ENCODED_MAX_KEY, ENCODED_MIN_KEY

Interval: TypeAlias = tuple[bytes, bytes]
Intervals: TypeAlias = tuple[Interval, ...]

ALL: Final[Intervals] = ((ENCODED_MIN_KEY, ENCODED_MAX_KEY + AFTER),)


def point(encoding: bytes) -> Interval:
    """Return the interval of the one value with this encoding."""
    return encoding, encoding + AFTER


def is_point(interval: Interval) -> bool:
    """Whether an interval is one value."""
    low, high = interval
    return len(high) == len(low) + 1 and high == low + AFTER


def union(sets: Iterable[Intervals]) -> Intervals:
    """Return the values in any of the sets."""
    merged: list[Interval] = []
    for low, high in sorted(interval for intervals in sets for interval in intervals):
        if merged and low < merged[-1][1]:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return the values in both sets."""
    if left == ALL:
        return right
    if right == ALL:
        return left
    common: list[Interval] = []
    at_left = at_right = 0
    while at_left < len(left) and at_right < len(right):
        low = max(left[at_left][0], right[at_right][0])
        high = min(left[at_left][1], right[at_right][1])
        if low < high:
            common.append((low, high))
        if left[at_left][1] < right[at_right][1]:
            at_left += 1
        else:
            at_right += 1
    return tuple(common)
