"""The ownership filter in queries and pipelines, and hiding migrations from change streams.

The stages that read the collection's documents, and those that must come first, are as in mongod 6.0.

**Positional projections** (``{"list.$": 1}``). mongod parses the query of such an operation a second time, and does not
allow ``$expr`` there. So the owned matching documents are looked up first, and their ids are added to the query in
place of the filter.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.reserved_session_ids import RESERVED_SESSION_IDS
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.targeting.collation import effective, is_simple, uncollated_field
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    NULL,
    OBJECT,
    Span,
    append,
    decode_value,
    element,
    encode_document,
    encode_elements,
    find,
    from_elements,
    index,
    spans,
    with_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.cursor import RawCursor

Collation = Mapping[str, Any] | None


def is_pinned(query: bytes, ownership: OwnershipFilter, collation: Collation) -> bool:
    """Whether a query matches only documents with one particular owned shard key."""
    pattern = ownership.pattern
    key = exact_shard_key(query, pattern)
    if key is None or not (is_simple(collation) or uncollated_field(pattern, key) is None):
        return False
    return not ownership.is_orphan(pattern.key_bytes(key))


def filtered_query(query: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """Return the query with the filter; unchanged if it is pinned.

    The filter is an additional top-level element, where it does not affect ``$text``, ``$near`` and positional
    operators.
    """
    return query if is_pinned(query, ownership, collation) else append(query, ownership.element(collation))


def with_filtered_query(
    document: bytes, name: bytes, ownership: OwnershipFilter, collation: Collation, *, may_be_null: bool = False
) -> bytes:
    """Return a command, statement or stage with the filter in its query, which may be absent or, if allowed, null."""
    span = find(document, name)
    if span is None or (may_be_null and span[0] == NULL):
        query = element(name, OBJECT, filtered_query(EMPTY_DOCUMENT, ownership, collation))
        return append(document if span is None else without(document, {name}), query)
    if span[0] != OBJECT:
        return document  # malformed: mongod reports it
    return with_value(document, span, filtered_query(document[span[2] : span[3]], ownership, collation))


def collation_of(document: bytes, ownership: OwnershipFilter) -> Collation:
    """Return the collation in force for a command or statement."""
    span = find(document, b"collation")
    own = decode_value(document, span) if span is not None and span[0] == OBJECT else None
    return effective(own, ownership.default_collation)


_Stage = tuple[int, bytes]
"""BSON type and raw value of a stage."""

_READ_NO_DOCUMENTS: Final = frozenset(
    {
        *(b"$changeStream", b"$collStats", b"$currentOp", b"$documents", b"$indexStats", b"$listCatalog"),
        *(b"$listLocalSessions", b"$listSessions", b"$mergeCursors", b"$operationMetrics", b"$planCacheStats"),
    }
)
"""First stages that do not read the collection's documents."""


def filtered_pipeline(pipeline: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """Return a pipeline, a raw array, with a filter against orphans."""
    stages = _stages(pipeline)
    if not stages:
        return _pipeline([_match(ownership.query(collation))])
    kind, first = stages[0]
    if kind != OBJECT:
        return pipeline  # malformed: mongod reports it
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
    """Add a stage to a change stream's pipeline, a raw array, that drops the writes of reserved sessions."""
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


_QUERY_AND_PROJECTION: Final = {
    "find": (b"filter", b"projection"),
    "findAndModify": (b"query", b"fields"),
    "findandmodify": (b"query", b"fields"),
}
_KEPT: Final = frozenset({b"collation", b"let", b"readConcern", b"maxTimeMS", b"$readPreference", b"hint"})
_ENDS_NAME: Final = b".$\0"
_ONLY_ID: Final = {"projection": {"_id": 1}}


def is_positional(request: Request) -> bool:
    """Whether an operation has a positional projection and a query."""
    names = _QUERY_AND_PROJECTION.get(request.name)
    if names is None:
        return False
    query, projection = request.fields.get(names[0]), request.fields.get(names[1])
    if query is None or query[0] != OBJECT or projection is None or projection[0] != OBJECT:
        return False
    return request.body.find(_ENDS_NAME, projection[2], projection[3]) >= 0 and any(
        name.endswith(b".$") for name, _ in rawbson.spans(request.body, projection[2])
    )


async def with_owned_ids(
    request: Request, mongod: LocalMongod, namespace: Namespace, ownership: OwnershipFilter
) -> bytes:
    """Restrict the query of an operation with a positional projection to owned documents; return the body.

    Raises:
        CommandError: the query is invalid; OperationNotSupportedInTransaction.
        BackendError: mongod does not answer.
    """
    body = request.body
    name = _QUERY_AND_PROJECTION[request.name][0]
    query = request.raw_object(name)
    assert query is not None
    filtered = filtered_query(query, ownership, collation_of(body, ownership))
    if filtered == query:
        return body
    if b"autocommit" in request.fields:
        raise CommandError(
            ErrorCode.OperationNotSupportedInTransaction,
            "a positional projection in a transaction must have the shard key in its query while a range is deleted",
        )
    kept = {each.decode(): _verbatim(request, each) for each in request.fields if each in _KEPT}
    search = {"find": namespace.collection, **_ONLY_ID, "filter": rawbson.raw_document(filtered), **kept}
    among = encode_elements({"$and": [{"_id": rawbson.raw_document(await _ids(mongod, namespace, search))}]})
    return with_value(body, request.fields[name], append(query, among))


async def _ids(mongod: LocalMongod, namespace: Namespace, search: Mapping[str, Any]) -> bytes:
    """Return ``{$in: [<_id>, …]}`` with the ids that a ``find`` returns, without a limit on mongod's reply time."""
    elements: list[bytes] = []
    cursor = RawCursor(mongod.pool.exchange, namespace.db, search, reply_seconds_max=inf)
    for document in await cursor.all_documents():
        found = find(document, b"_id")
        assert found is not None
        elements.append(element(b"%d" % len(elements), found[0], document[found[2] : found[3]]))
    return rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")


def _verbatim(request: Request, name: bytes) -> object:
    """Return the value of a field, documents in raw form."""
    span = request.fields[name]
    return rawbson.raw_document(request.raw(span)) if span[0] == OBJECT else request.get(name)
