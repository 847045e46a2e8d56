"""Classification of cursors by the fields that their remaining documents show, and of the reads that open them.

Documents that arrive with a range must be left out of older cursors. The method depends on the cursor's documents. They
show the shard key, or only the ``_id``, which allows a lookup of the key, or neither. A document shows a field only if
no stage of the pipeline may have changed its value.

**Openings.** An arriving range can be hidden from an open cursor whose documents show their shard key or ``_id``
(`fenced_cursors`), unless a limit counts the hidden ones. Any other cursor must be opened with a filter for everything
that the shard does not own, as a genuine shard opens all cursors. The alternatives fail: no migration can wait for a
client to read the rest, and the rest may be too large to keep. The filter costs mongod about 0.7 µs per matching
document, and 17 µs per key range once. So it is added only if the cursor outlives its first batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any, Final, NamedTuple

import bson

from shardwright.shardd.orphans.filtered_queries import collation_of, is_positional
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, has_complete_filter
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import key_ranges
from shardwright.sharding.targeting.values import effective, is_simple
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    OBJECT,
    Span,
    decode_document,
    decode_value,
    find,
    is_string,
    spans,
)
from shardwright.wire.request import Request

READ_TO_THE_END_FIRST: Final = frozenset({"$bucket", "$bucketAuto", "$count", "$facet", "$group", "$sortByCount"})
"""Stages that return nothing before they have read everything, so that an open cursor holds a complete result."""

READ_NO_DOCUMENTS: Final = frozenset({"$changeStream", "$collStats", "$indexStats", "$mergeCursors", "$planCacheStats"})

KEEPING_ALL: Final = frozenset({"$match", "$sort", "$skip", "$_internalInhibitOptimization"})
"""Stages that change no documents. A cursor that has returned a document is already past ``$skip``."""

_ID: Final = ("_id",)
_ADDING_DOCUMENTS: Final = frozenset({"$_internalUnpackBucket", "$densify", "$unionWith", "$unwind"})
"""Stages that may return more documents than they receive."""

_ADDED_BY: Final[Mapping[str, Sequence[str]]] = {
    "$lookup": ("as",),
    "$graphLookup": ("as",),
    "$geoNear": ("distanceField", "includeLocs"),
}
"""The arguments of stages that name added fields."""

_SORT_KEY: Final = "$sortKey"

_KNOWN_PROJECTIONS_MAX: Final = 1_024

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


class Shown(Enum):
    """Identifying fields that all documents of a cursor show."""

    KEY = "the shard key"
    ID = "the _id"
    NEITHER = "neither"


def may_return(
    command: Mapping[str, Any], hidden: OwnershipFilter, *, is_begun: bool = True, returned: int = 0
) -> bool:
    """Whether a cursor might return documents that are written to some ranges from now on.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
        is_begun: whether it has returned documents, or its first batch was not requested to be empty.
    """
    most = results_max(command)
    if most is not None and returned >= most:
        return False  # mongod keeps some exhausted cursors open
    concern = command.get("readConcern", {}).get("level")
    if concern == "snapshot" or "autocommit" in command:
        return False  # a snapshot; a transaction reads one with any read concern
    if concern == "available":
        return False  # includes orphans
    pipeline = _stages(command)
    if pipeline and not READ_NO_DOCUMENTS.isdisjoint(pipeline[0]):
        return False
    if is_begun and any(not READ_TO_THE_END_FIRST.isdisjoint(stage) for stage in pipeline):
        return False
    query = _query(command, pipeline)
    if has_complete_filter(query):
        return False
    collation = effective(command.get("collation"), hidden.default_collation)
    ranges = key_ranges(bson.encode(query), hidden.pattern, simple_collation=is_simple(collation))
    return any(hidden.overlaps(low, high) for low, high in ranges.ranges)


def shown_by(command: Mapping[str, Any], pattern: ShardKeyPattern) -> Shown:
    """Classify the documents that a begun cursor has yet to return.

    Removed documents must not have been counted by a limit, nor have influenced others.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
    """
    if "find" not in command:
        return shown_by_stages(_stages(command), pattern)
    if command.get("limit") or command.get("returnKey"):
        return Shown.NEITHER
    return shown_by_stages([{"$project": _without_sort_key(command.get("projection", {}))}], pattern)


def results_max(command: Mapping[str, Any]) -> int | None:
    """Return the maximum number of documents that a ``find`` or an ``aggregate`` returns; None without a limit."""
    if "find" in command:
        return _count(command.get("limit")) or None
    return results_max_of_stages(_stages(command))


def results_max_of_stages(stages: Sequence[Mapping[str, Any]]) -> int | None:
    """Compute `results_max` for a pipeline."""
    most: int | None = None
    for stage in stages:
        ((name, argument),) = stage.items() if len(stage) == 1 else (("", None),)
        if name in ("$limit", "$sample"):
            count = _count(argument.get("size") if isinstance(argument, Mapping) else argument)
            if count is not None:
                most = count if most is None else min(most, count)
        elif name in _ADDING_DOCUMENTS:
            most = None
    return most


@lru_cache(_KNOWN_PROJECTIONS_MAX)
def shown_by_projection(projection: bytes, pattern: bytes) -> Shown:
    """Compute `shown_by` for a ``find`` without limit."""
    fields = decode_document(projection)
    return shown_by_stages([{"$project": _without_sort_key(fields)}], ShardKeyPattern.from_bson(pattern))


def shown_by_stages(stages: Sequence[Mapping[str, Any]], pattern: ShardKeyPattern) -> Shown:
    """Compute `shown_by` for the documents that a pipeline returns."""
    if _keep(stages, [each.name.decode() for each in pattern.fields]):
        return Shown.KEY
    return Shown.ID if _keep(stages, _ID) else Shown.NEITHER


def _keep(stages: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> bool:
    return all(_keeps(stage, path) for stage in stages for path in paths)


def _keeps(stage: Mapping[str, Any], path: str) -> bool:
    """Whether a stage certainly keeps the value at `path` in each document that it passes on."""
    if len(stage) != 1:
        return False
    ((name, argument),) = stage.items()
    if name in KEEPING_ALL:
        return True
    if name == "$project":
        return isinstance(argument, Mapping) and _projects(argument, path)
    changed = _changed_by(name, argument)
    return changed is not None and not any(_overlaps(each, path) for each in changed)


def _changed_by(name: str, argument: Any) -> Sequence[str] | None:  # noqa: ANN401 - any BSON value
    """Return the fields that a stage other than ``$project`` adds, changes or removes; None if it may do more."""
    if name in ("$addFields", "$set"):
        return list(argument) if isinstance(argument, Mapping) else None
    if name == "$unset":
        return [argument] if is_string(argument) else argument if isinstance(argument, list) else None
    if name == "$unwind":
        options = {"path": argument} if is_string(argument) else argument
        if not isinstance(options, Mapping) or not is_string(options.get("path")):
            return None
        index = options.get("includeArrayIndex")
        return [options["path"].removeprefix("$"), *([index] if is_string(index) else [])]
    if name not in _ADDED_BY or not isinstance(argument, Mapping):
        return None
    return [argument[each] for each in _ADDED_BY[name] if is_string(argument.get(each))]


def _projects(projection: Mapping[str, Any], path: str) -> bool:
    """Whether a projection keeps the value at `path`."""
    fields = list(_flattened(projection))
    concerning = [(name, value) for name, value in fields if _overlaps(name, path)]
    if concerning:
        return all(_is_included(value) and _is_part(path, of=name) for name, value in concerning)
    others = [value for name, value in fields if not _is_part(name, of="_id")]
    if _is_part(path, of="_id"):
        return True
    if others:
        return all(_is_excluded(value) for value in others)
    return all(_is_excluded(value) for _, value in fields)


def _flattened(projection: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in projection.items():
        if isinstance(value, Mapping) and value and not any(each.startswith("$") for each in value):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _without_sort_key(projection: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the field that routers add to a projection to merge sorted results."""
    return {name: value for name, value in projection.items() if name != _SORT_KEY}


def _query(command: Mapping[str, Any], pipeline: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the query that selects the documents a command reads."""
    if "find" in command:
        query = command.get("filter", {})
    else:
        first = pipeline[0] if pipeline else {}
        query = first.get("$match") or first.get("$geoNear", {}).get("query") or {}
    return query if isinstance(query, Mapping) else {}


def _count(value: object) -> int | None:
    """Convert a number of documents; None for a value that mongod refuses."""
    return int(value) if isinstance(value, (int, float)) and isfinite(value) else None


def _stages(command: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    pipeline = command.get("pipeline", ())
    return pipeline if isinstance(pipeline, Sequence) else ()


def _is_included(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and bool(value)


def _is_excluded(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and not value


def _overlaps(path: str, other: str) -> bool:
    return _is_part(path, of=other) or _is_part(other, of=path)


def _is_part(path: str, *, of: str) -> bool:
    return path == of or path.startswith(of + ".")


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
    ranges = key_ranges(_query_of_command(request), unowned.pattern, simple_collation=is_simple(collation))
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


def _query_of_command(request: Request) -> bytes:
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
