"""Selection of the reads that need a complete ownership filter from the beginning.

An arriving range can be hidden from an open cursor whose documents show their shard key or ``_id`` (`fenced_cursors`),
unless a limit counts the hidden ones. Any other cursor must be opened with a filter for everything that the shard does
not own, as a genuine shard opens all cursors. The alternatives fail: no migration can wait for a client to read the
rest, and the rest may be too large to keep. The filter costs mongod about 0.7 µs per matching document, and 17 µs per
key range once. So it is added only if the cursor outlives its first batch.
"""

from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Final, NamedTuple

from shardwright.shardd.orphans.cursor_kinds import (
    KEEPING_ALL,
    READ_NO_DOCUMENTS,
    READ_TO_THE_END_FIRST,
    Shown,
    results_max_of_stages,
    shown_by_projection,
    shown_by_stages,
)
from shardwright.shardd.orphans.filtered_queries import collation_of, is_positional
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.collation import is_simple
from shardwright.sharding.targeting.filters import key_ranges
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    OBJECT,
    Span,
    decode_value,
    find,
    spans,
)
from shardwright.wire.request import Request

_FIRST_BATCH_DOCUMENTS: Final = 101
"""mongod's default size of a first batch, in documents."""

_INTEGERS: Final = (INT32, INT64, DOUBLE)
_ORDERING: Final = frozenset({b"$sort", b"$setWindowFields", b"$densify", b"$fill", b"$sample"})
"""Stages that may read everything before they return the first document, so that repeating them is expensive."""

_KEEPING_ALL: Final = frozenset(each.encode() for each in KEEPING_ALL)
_READ_NO_DOCUMENTS: Final = frozenset(each.encode() for each in READ_NO_DOCUMENTS)
_READ_TO_THE_END_FIRST: Final = frozenset(each.encode() for each in READ_TO_THE_END_FIRST)
_KNOWN_BYTES_MAX: Final = 2_048
_KNOWN_PIPELINES_MAX: Final = 1_024


class Opening(Enum):
    """Condition for the complete filter of a read."""

    UNFILTERED = "never"
    FILTERED_IF_OPEN = "if the first batch leaves the cursor open, for which the read is repeated"
    FILTERED = "at once"


def opening_of(request: Request, pattern: ShardKeyPattern) -> Opening:
    """Return the condition under which a read of a sharded collection needs the complete filter.

    Args:
        request: a ``find`` or an ``aggregate``.

    Raises:
        InvalidBSONError: the request is malformed.
    """
    if request.name != "find":
        return _opening_of_aggregate(request, pattern)
    fields = request.fields
    if b"limit" not in fields and b"projection" not in fields and b"returnKey" not in fields:
        return Opening.UNFILTERED
    return _opening_of_find(request, pattern)


def may_match(request: Request, unowned: OwnershipFilter) -> bool:
    """Whether the query of a ``find`` or an ``aggregate`` may match documents that the shard does not own.

    Raises:
        CommandError: Overflow for a value that is nested too deeply.
        InvalidBSONError: the request is malformed.
    """
    collation = collation_of(request.body, unowned)
    ranges = key_ranges(_query(request), unowned.pattern, simple_collation=is_simple(collation))
    return any(unowned.overlaps(low, high) for low, high in ranges.ranges)


def results_max_of(request: Request, pattern: ShardKeyPattern) -> int | None:
    """Return the maximum number of results of a command that `opening_of` may filter; None without a limit."""
    if request.name == "find":
        return _integer(request.body, request.fields.get(b"limit")) or None
    stages, _ = _deciding_stages(request.body, request.fields[b"pipeline"])
    return _kind_of_stages(stages, pattern.document).results_max


def _opening_of_find(request: Request, pattern: ShardKeyPattern) -> Opening:
    fields = request.fields
    limit = _integer(request.body, fields[b"limit"]) if b"limit" in fields else 0
    projection = fields.get(b"projection")
    if (b"singleBatch" in fields and _is_true(request, b"singleBatch")) or is_positional(request):
        return Opening.UNFILTERED
    if not limit and not (b"returnKey" in fields and _is_true(request, b"returnKey")):
        if projection is None or projection[0] != OBJECT:
            return Opening.UNFILTERED
        raw = request.raw(projection)
        classify = shown_by_projection if len(raw) <= _KNOWN_BYTES_MAX else shown_by_projection.__wrapped__
        if classify(raw, pattern.document) is not Shown.NEITHER:
            return Opening.UNFILTERED
    return _opening(request.body, fields.get(b"batchSize"), limit or None, is_ordering=b"sort" in fields)


def _opening_of_aggregate(request: Request, pattern: ShardKeyPattern) -> Opening:
    body, pipeline = request.body, request.fields.get(b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY or b"explain" in request.fields:
        return Opening.UNFILTERED
    stages, names = _deciding_stages(body, pipeline)
    if not stages or names[0] in _READ_NO_DOCUMENTS or not _READ_TO_THE_END_FIRST.isdisjoint(names):
        return Opening.UNFILTERED
    shown, most = _kind_of_stages(stages, pattern.document)
    if shown is not Shown.NEITHER:
        return Opening.UNFILTERED
    cursor = request.fields.get(b"cursor")
    size = None if cursor is None or cursor[0] != OBJECT else find(body, b"batchSize", cursor[2])
    return _opening(body, size, most, is_ordering=b"$limit" in names or not _ORDERING.isdisjoint(names))


def _opening(body: bytes, batch_size: Span | None, most: int | None, *, is_ordering: bool) -> Opening:
    """Return the condition for a read whose documents show neither key nor ``_id``, or are counted by a limit.

    Args:
        batch_size: the span of the first batch's size.
        most: maximum number of documents returned.
        is_ordering: whether repeating the read is expensive.
    """
    size = _integer(body, batch_size, _FIRST_BATCH_DOCUMENTS)
    if most is None:
        return Opening.FILTERED if is_ordering or not size else Opening.FILTERED_IF_OPEN
    if not size and most <= _FIRST_BATCH_DOCUMENTS:
        return Opening.UNFILTERED  # an unbegun cursor can be opened again, and its next batch is its last
    return Opening.FILTERED_IF_OPEN if most <= size else Opening.FILTERED


def _deciding_stages(body: bytes, pipeline: Span) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Return the raw stages that may change documents or their number, and the names of all stages."""
    stages: list[bytes] = []
    names: list[bytes] = []
    for _, (kind, _, start, end) in spans(body, pipeline[2]):
        at = start + 5
        name = body[at : body.find(b"\0", at, end)] if kind == OBJECT and end > at else b""
        names.append(name)
        if name not in _KEEPING_ALL:
            stages.append(body[start:end] if name else EMPTY_DOCUMENT)
    return tuple(stages), names


class _Kind(NamedTuple):
    """Fields shown by the output of some stages, and its maximum number of documents."""

    shown: Shown
    results_max: int | None


def _kind_of_stages(stages: tuple[bytes, ...], pattern: bytes) -> _Kind:
    """Classify stages, with a cache for short ones."""
    is_short = sum(map(len, stages)) <= _KNOWN_BYTES_MAX
    return _known_kind(stages, pattern) if is_short else _known_kind.__wrapped__(stages, pattern)


@lru_cache(_KNOWN_PIPELINES_MAX)
def _known_kind(stages: tuple[bytes, ...], pattern: bytes) -> _Kind:
    decoded = [decode_value(each, (OBJECT, 0, 0, len(each))) for each in stages]
    return _Kind(shown_by_stages(decoded, ShardKeyPattern.from_bson(pattern)), results_max_of_stages(decoded))


def _query(request: Request) -> bytes:
    body = request.body
    query = request.fields.get(b"filter")
    if request.name != "find":
        pipeline = request.fields[b"pipeline"]
        first = next((span for _, span in spans(body, pipeline[2])), None)
        query = None if first is None or first[0] != OBJECT else find(body, b"$match", first[2])
    return EMPTY_DOCUMENT if query is None or query[0] != OBJECT else body[query[2] : query[3]]


def _integer(body: bytes, span: Span | None, default: int = 0) -> int:
    if span is None or span[0] not in _INTEGERS:
        return default
    value = decode_value(body, span)
    return int(value) if isfinite(value) else default


def _is_true(request: Request, name: bytes) -> bool:
    span = request.fields.get(name)
    return span is not None and span[0] == BOOL and bool(decode_value(request.body, span))
