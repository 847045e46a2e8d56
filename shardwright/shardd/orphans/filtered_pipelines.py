"""Pipelines that read no orphan, and change streams that do not show how documents move.

Which stages read documents of the collection, and which must be the first, is what mongod 6.0 says.
"""

from typing import Final

from bson.binary import Binary

from shardwright.shardd.local_mongod.reserved_sessions import RESERVED_SESSION_IDS
from shardwright.shardd.orphans.filtered_queries import Collation, filtered_query, with_filtered_query
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    Span,
    element,
    encode_document,
    from_elements,
    index,
    spans,
    with_value,
)

_Stage = tuple[int, bytes]
"""Type and value."""

_READ_NO_DOCUMENTS: Final = frozenset(
    {
        *(b"$changeStream", b"$collStats", b"$currentOp", b"$documents", b"$indexStats", b"$listCatalog"),
        *(b"$listLocalSessions", b"$listSessions", b"$mergeCursors", b"$operationMetrics", b"$planCacheStats"),
    }
)
"""First stages that take something else than the documents of the collection."""


def filtered_pipeline(pipeline: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """A pipeline, a raw array, that reads what the given one does but orphans.

    Args:
        pipeline: raw.
        ownership: what orphans are.
        collation: the one in force.
    """
    stages = _stages(pipeline)
    if not stages:
        return _pipeline([_match(ownership.query(collation))])
    kind, first = stages[0]
    if kind != OBJECT:
        return pipeline  # mongod says what is wrong
    name, span = _only_field(first)
    if name in _READ_NO_DOCUMENTS:
        return pipeline
    if name == b"$match" and span[0] == OBJECT:
        # $text has to be in the very first stage, so the filter goes in there, too.
        stages[0] = kind, with_value(first, span, filtered_query(first[span[2] : span[3]], ownership, collation))
    elif name == b"$geoNear" and span[0] == OBJECT:
        near = with_filtered_query(first[span[2] : span[3]], b"query", ownership, collation)
        stages[0] = kind, with_value(first, span, near)
    else:
        stages.insert(0, _match(ownership.query(collation)))
    return _pipeline(stages)


def opens_change_stream(body: bytes, pipeline: Span) -> bool:
    """Whether an ``aggregate`` begins with ``$changeStream``."""
    if pipeline[0] != ARRAY:
        return False
    first = next(spans(body, pipeline[2]), None)
    if first is None or first[1][0] != OBJECT:
        return False
    return any(name == b"$changeStream" for name, _ in spans(body, first[1][2]))


def without_moves(pipeline: bytes) -> bytes:
    """The pipeline of a change stream, a raw array, that leaves out what the reserved sessions write."""
    first, *others = _stages(pipeline)
    return _pipeline([first, _match(NOT_RESERVED), *others])


def _stages(pipeline: bytes) -> list[_Stage]:
    return [(kind, pipeline[start:end]) for _, (kind, _, start, end) in spans(pipeline)]


def _only_field(stage: bytes) -> tuple[bytes, Span]:
    fields = index(stage)
    return next(iter(fields.items())) if len(fields) == 1 else (b"", (0, 0, 0, 0))


def _match(query: bytes) -> _Stage:
    return OBJECT, from_elements(element(b"$match", OBJECT, query))


def _pipeline(stages: list[_Stage]) -> bytes:
    return from_elements(b"".join([element(b"%d" % number, *stage) for number, stage in enumerate(stages)]))


NOT_RESERVED: Final = encode_document({"lsid.id": {"$nin": [Binary.from_uuid(each) for each in RESERVED_SESSION_IDS]}})
"""Matches what migrations have not written."""
