"""Values that a filter allows for the fields of a shard key, and the resulting ranges of compound keys.

A *box* has one set of values per field of the key; a key is in it when each of its parts is in its set. A filter is
turned into a union of boxes: ``$and`` intersects, ``$or`` unites. All results are supersets of the filter's matches.
Limits here widen the result, so that a huge filter costs a broadcast rather than the router's memory.
"""

from typing import Final, TypeAlias

from shardwright.sharding.key_order import AFTER, ENCODED_MIN_KEY
from shardwright.sharding.targeting.intervals import ALL, Interval, Intervals, intersection, is_point, union

Box: TypeAlias = tuple[Intervals, ...]
Boxes: TypeAlias = tuple[Box, ...]

BOXES_MAX: Final = 256
"""Most boxes of an intersection; beyond it, one of its sides is dropped."""

KEY_RANGES_MAX: Final = 100_000
"""Most ranges that multiplying the points of a box's first fields may give; mongos fails at four million instead."""

NO_BOXES: Final[Boxes] = ()


def unlimited(fields: int) -> Boxes:
    """Return the whole key space of a key with that many fields."""
    return ((ALL,) * fields,)


def limited(fields: int, field: int, values: Intervals) -> Boxes:
    """Limit one field to some values."""
    if not values:
        return NO_BOXES
    return ((ALL,) * field + (values,) + (ALL,) * (fields - field - 1),)


def intersect(left: Boxes, right: Boxes) -> Boxes:
    """Return the keys in both, or, where that would be too many boxes, the keys in one of them."""
    if len(left) * len(right) > BOXES_MAX:
        return min(left, right, key=len)
    boxes = []
    for one in left:
        for other in right:
            box = tuple(map(intersection, one, other))
            if all(box):
                boxes.append(box)
    return tuple(boxes)


def unite(alternatives: list[Boxes]) -> Boxes:
    """Return the keys in any of them. Boxes that differ in only one field become one."""
    boxes = [box for alternative in alternatives for box in alternative]
    if len(boxes) < 2:
        return tuple(boxes)
    for field in range(len(boxes[0])):
        grouped: dict[Box, list[Intervals]] = {}
        for box in boxes:
            grouped.setdefault(box[:field] + box[field + 1 :], []).append(box[field])
        boxes = [(*rest[:field], union(sets), *rest[field:]) for rest, sets in grouped.items()]
    return tuple(boxes)


def compound_ranges(box: Box) -> list[Interval]:
    """Return the ranges of key bytes that cover a box.

    Fields limited to points are multiplied with one another. The first field that is not ends the precise part, because
    after a range the further fields no longer form a range. They count as MinKey at the low end: a range from ``{a:
    5}`` begins at ``{a: 5, b: MinKey}``, where chunks tend to begin, and not below.
    """
    prefixes = [b""]
    fields_left = len(box)
    for values in box:
        if values == ALL or len(prefixes) * len(values) > KEY_RANGES_MAX:
            break
        fields_left -= 1
        if not all(map(is_point, values)):
            rest = ENCODED_MIN_KEY * fields_left
            return [(prefix + low + rest, prefix + high) for prefix in prefixes for low, high in values]
        prefixes = [prefix + low for prefix in prefixes for low, _ in values]
    if prefixes == [b""]:
        return list(ALL)
    rest = ENCODED_MIN_KEY * fields_left
    return [(prefix + rest, prefix + AFTER) for prefix in prefixes]
