"""Which reads open cursors that need a complete ownership filter from the beginning.

Any range can be hidden from an open cursor whose documents show their shard key or ``_id``, or that has little left
(`older_cursors`). A cursor with much left whose documents show neither has to be opened with a filter for everything
that the shard does not own, as a genuine shard opens all cursors. The filter costs mongod about 0.7 µs per matching
document, and 17 µs per range of keys once. So it is added only if the cursor outlives its first batch.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from shardwright.shardd.orphans.cursor_kinds import (
    READ_NO_DOCUMENTS,
    READ_TO_THE_END_FIRST,
    Shown,
    shown_by_projection,
    shown_by_stages,
)
from shardwright.shardd.orphans.filtered_queries import collation_of
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.positional import is_positional
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

LITTLE_DOCUMENTS: Final = 10_000
"""What is left of a cursor with such a limit can be read when a range is received."""

_INTEGERS: Final = (INT32, INT64, DOUBLE)
_ORDERING: Final = frozenset({"$sort", "$setWindowFields", "$densify", "$fill", "$sample"})
"""Stages that may read everything before they return the first document, so that repeating them is expensive."""


class Opening(Enum):
    """When a read needs the complete filter."""

    UNFILTERED = "never"
    FILTERED_IF_OPEN = "if the first batch leaves the cursor open, for which the read is repeated"
    FILTERED = "at once"


def opening_of(request: Request, pattern: ShardKeyPattern) -> Opening:
    """When a read of a sharded collection needs the complete filter.

    Args:
        request: a ``find`` or an ``aggregate``.
        pattern: the shard key.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    return _opening_of_find(request, pattern) if request.name == "find" else _opening_of_aggregate(request, pattern)


def may_match(request: Request, unowned: OwnershipFilter) -> bool:
    """Whether the query of a ``find`` or an ``aggregate`` may match documents that the shard does not own.

    Raises:
        CommandError: Overflow for a value that is nested too deep.
        InvalidBSONError: it is not well-formed.
    """
    collation = collation_of(request.body, unowned)
    ranges = key_ranges(_query(request), unowned.pattern, simple_collation=is_simple(collation))
    return any(unowned.overlaps(low, high) for low, high in ranges.ranges)


def _opening_of_find(request: Request, pattern: ShardKeyPattern) -> Opening:
    fields = request.fields
    limit = _integer(request.body, fields.get(b"limit"))
    if 0 < limit <= LITTLE_DOCUMENTS:
        return Opening.UNFILTERED
    projection = fields.get(b"projection")
    if not limit and projection is None and b"returnKey" not in fields:
        return Opening.UNFILTERED
    if _is_true(request, b"singleBatch") or is_positional(request):
        return Opening.UNFILTERED
    if not limit and not _is_true(request, b"returnKey"):
        if projection is None or projection[0] != OBJECT:
            return Opening.UNFILTERED
        if shown_by_projection(request.raw(projection), pattern.document) is not Shown.NEITHER:
            return Opening.UNFILTERED
    is_deferred = _integer(request.body, fields.get(b"batchSize"), -1) == 0
    return Opening.FILTERED if limit or is_deferred or b"sort" in fields else Opening.FILTERED_IF_OPEN


def _opening_of_aggregate(request: Request, pattern: ShardKeyPattern) -> Opening:
    pipeline = request.fields.get(b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY or b"explain" in request.fields:
        return Opening.UNFILTERED
    stages = _stages(request.body, pipeline)
    names = {name for stage in stages for name in stage}
    if (stages and not READ_NO_DOCUMENTS.isdisjoint(stages[0])) or not READ_TO_THE_END_FIRST.isdisjoint(names):
        return Opening.UNFILTERED
    if shown_by_stages(stages, pattern) is not Shown.NEITHER or _has_little(stages):
        return Opening.UNFILTERED
    cursor = request.fields.get(b"cursor")
    size = None if cursor is None or cursor[0] != OBJECT else find(request.body, b"batchSize", cursor[2])
    is_deferred = _integer(request.body, size, -1) == 0
    is_expensive = is_deferred or "$limit" in names or not _ORDERING.isdisjoint(names)
    return Opening.FILTERED if is_expensive else Opening.FILTERED_IF_OPEN


def _has_little(stages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a stage limits the result, and none after it adds documents again."""
    has_little = False
    for stage in stages:
        ((name, argument),) = stage.items() if len(stage) == 1 else (("", None),)
        if name == "$limit" or name == "$sample":
            count = argument.get("size") if isinstance(argument, Mapping) else argument
            has_little = has_little or (isinstance(count, (int, float)) and count <= LITTLE_DOCUMENTS)
        elif name in ("$unwind", "$densify", "$unionWith"):
            has_little = False
    return has_little


def _stages(body: bytes, pipeline: Span) -> list[dict[str, Any]]:
    """The stages, without the queries of ``$match``, which do not matter and may be long."""
    stages: list[dict[str, Any]] = []
    for _, stage in spans(body, pipeline[2]):
        fields = spans(body, stage[2]) if stage[0] == OBJECT else ()
        stages.append(
            {
                name.decode(errors="replace"): None if name == b"$match" else decode_value(body, span)
                for name, span in fields
            }
        )
    return stages


def _query(request: Request) -> bytes:
    body = request.body
    query = request.fields.get(b"filter")
    if request.name != "find":
        pipeline = request.fields[b"pipeline"]
        first = next((span for _, span in spans(body, pipeline[2])), None)
        query = None if first is None or first[0] != OBJECT else find(body, b"$match", first[2])
    return EMPTY_DOCUMENT if query is None or query[0] != OBJECT else body[query[2] : query[3]]


def _integer(body: bytes, span: Span | None, default: int = 0) -> int:
    return default if span is None or span[0] not in _INTEGERS else int(decode_value(body, span))


def _is_true(request: Request, name: bytes) -> bool:
    span = request.fields.get(name)
    return span is not None and span[0] == BOOL and bool(decode_value(request.body, span))
