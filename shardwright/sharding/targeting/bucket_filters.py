"""Translation of filters of measurements in a time-series collection into filters of its buckets.

`bucket_filter` is for targeting: its matches include all buckets with matching measurements. It keeps conditions on the
metadata, and turns conditions on the time into bounds of a bucket's beginning. Others do not restrict buckets.
`meta_filter` is for updates and deletes, which affect whole buckets and so may only name the metadata.
"""

from struct import Struct
from typing import Final

from shardwright.sharding.targeting.filters import is_operator_object
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.rawbson import ARRAY, DATE, OBJECT, Span, element, from_elements, spans

_int64 = Struct("<q")

_MS_MIN: Final = -(2**63)
_MS_MAX: Final = 2**63 - 1

_OF_FILTERS: Final = frozenset({b"$and", b"$or"})
"""Operators whose nested filters targeting uses."""
_OF_META_FILTERS: Final = _OF_FILTERS | {b"$nor"}

Bounds = tuple[int, int]
"""First and last time, in milliseconds."""


def bucket_filter(filter_document: bytes, fields: TimeSeriesFields, start: int = 0) -> bytes:
    """Translate a filter of measurements into one that matches every bucket with a matching measurement."""
    time = fields.time_field.encode()
    elements = []
    for name, span in spans(filter_document, start):
        kind, _, value, end = span
        if name in _OF_FILTERS and kind == ARRAY:
            branches = [
                element(position, OBJECT, bucket_filter(filter_document, fields, below[2]))
                for position, below in spans(filter_document, value)
                if below[0] == OBJECT
            ]
            elements.append(element(name, ARRAY, from_elements(b"".join(branches))))
        elif name == time:
            bounds = _bounds(filter_document, span)
            if bounds is not None:
                elements.append(_beginning_within(bounds, fields))
        else:
            renamed = fields.renamed(name.decode(errors="replace"))
            if renamed is not None:
                elements.append(element(renamed.encode(), kind, filter_document[value:end]))
    return from_elements(b"".join(elements))


def meta_filter(filter_document: bytes, fields: TimeSeriesFields, start: int = 0) -> bytes | None:
    """Translate a filter that names only the metadata into a filter of buckets; None if it names anything else."""
    elements = []
    for name, (kind, _, value, end) in spans(filter_document, start):
        if name in _OF_META_FILTERS and kind == ARRAY:
            branches = []
            for position, below in spans(filter_document, value):
                branch = meta_filter(filter_document, fields, below[2]) if below[0] == OBJECT else None
                if branch is None:
                    return None
                branches.append(element(position, OBJECT, branch))
            elements.append(element(name, ARRAY, from_elements(b"".join(branches))))
            continue
        renamed = fields.renamed(name.decode(errors="replace"))
        if renamed is None:
            return None
        elements.append(element(renamed.encode(), kind, filter_document[value:end]))
    return from_elements(b"".join(elements))


def _bounds(document: bytes, span: Span) -> Bounds | None:
    """Return the times for which a condition on the time can hold; None if it does not restrict them to dates."""
    if span[0] == DATE:
        return _between(document, span)
    if not is_operator_object(document, span):
        return None
    found = [_bounds_of_operator(document, name, operand) for name, operand in spans(document, span[2])]
    known = [each for each in found if each is not None]
    if not known:
        return None
    return max(low for low, _ in known), min(high for _, high in known)


def _bounds_of_operator(document: bytes, name: bytes, operand: Span) -> Bounds | None:
    if name == b"$in" and operand[0] == ARRAY:
        values = [each for _, each in spans(document, operand[2])]
        if not values or any(each[0] != DATE for each in values):
            return None
        times = [_between(document, each)[0] for each in values]
        return min(times), max(times)
    if operand[0] != DATE:
        return None
    low, high = _between(document, operand)
    if name == b"$eq":
        return low, high
    if name in (b"$gt", b"$gte"):
        return low, _MS_MAX
    if name in (b"$lt", b"$lte"):
        return _MS_MIN, high
    return None


def _between(document: bytes, span: Span) -> Bounds:
    (time,) = _int64.unpack_from(document, span[2])
    return time, time


def _beginning_within(bounds: Bounds, fields: TimeSeriesFields) -> bytes:
    """Build the condition that a bucket can have such measurements: it begins at most its span before the first."""
    low, high = bounds
    limits = element(b"$gte", DATE, _int64.pack(max(low - fields.span_ms, _MS_MIN)))
    limits += element(b"$lte", DATE, _int64.pack(high))
    return element(fields.min_time_field.encode(), OBJECT, from_elements(limits))
