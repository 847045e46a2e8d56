"""Adding the ownership filter to pipelines, and hiding migrations from change streams.

Which stages read the collection's documents, and which ones must come first, is as in mongod 6.0.
"""

from typing import Final

from bson.binary import Binary

from shardwright.shardd.local_mongod.reserved_session_ids import RESERVED_SESSION_IDS
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
"""A stage's BSON type and raw value."""

_READ_NO_DOCUMENTS: Final = frozenset(
    {
        *(b"$changeStream", b"$collStats", b"$currentOp", b"$documents", b"$indexStats", b"$listCatalog"),
        *(b"$listLocalSessions", b"$listSessions", b"$mergeCursors", b"$operationMetrics", b"$planCacheStats"),
    }
)
"""First stages that do not read the collection's documents."""


def filtered_pipeline(pipeline: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """The same pipeline, a raw array, but ignoring orphans.

    Args:
        pipeline: the pipeline, a raw array.
        ownership: the filter.
        collation: the collation in force.
    """
    stages = _stages(pipeline)
    if not stages:
        return _pipeline([_match(ownership.query(collation))])
    kind, first = stages[0]
    if kind != OBJECT:
        return pipeline  # malformed, which mongod reports
    name, span = _only_field(first)
    if name in _READ_NO_DOCUMENTS:
        return pipeline
    if name == b"$match" and span[0] == OBJECT:
        # $text must be in the very first stage, so the filter is added to that one.
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
    """The pipeline of a change stream, a raw array, with a stage that drops the writes of reserved sessions."""
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
"""A query for events that are not writes of reserved sessions."""
