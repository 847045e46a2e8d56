"""The ownership filter in queries and pipelines, hiding migrations from change streams, and replies without the filter.

The stages that read the collection's documents, and those that must come first, are as in mongod 6.0.

**Positional projections** (``{"list.$": 1}``). mongod parses the query of such an operation a second time, and does not
allow ``$expr`` there. So the owned matching documents are looked up first, and their ids are added to the query in
place of the filter.

**Replies and error messages** must show only the client's own query. ``explain``, ``$currentOp`` and
``$planCacheStats`` show queries both as received and as parsed. Both forms contain the name of the variable that
identifies a filter. Documents are not decoded, and parts without a filter are copied.

If mongod cannot plan a query, its error shows the query with the filter. Then mongod explains the operation as the
client sent it. That executes nothing and fails with the message for the client.
"""

from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, Final

import bson
from bson.binary import Binary

from shardwright.daemon.command_table import first_stage_names
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.orphans.ownership_filter import COMPLETE_KEY_VARIABLE, KEY_VARIABLE, OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.targeting.values import effective, is_simple, uncollated_field
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg, with_body
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    NULL,
    OBJECT,
    STRING,
    VALUE_CODEC,
    Span,
    append,
    array_documents,
    decode_value,
    element,
    encode_document,
    encode_elements,
    find,
    from_elements,
    index,
    raw_document,
    spans,
    string_value,
    with_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

Collation = Mapping[str, Any] | None

_SHOWING_STAGES: Final = frozenset({b"$currentOp", b"$planCacheStats"})
_VARIABLES: Final = (KEY_VARIABLE.encode(), COMPLETE_KEY_VARIABLE.encode())

_TEXT: Final = b"$expr: { $let: { vars: { " + KEY_VARIABLE.encode()
_SHOWN_EMPTY: Final = frozenset({b"parsedQuery", b"pipeline", b"q"})
"""Fields that mongod shows even if they are empty."""


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


_MARKS: Final = (KEY_VARIABLE.encode(), NOT_RESERVED)
"""The variable name of complete filters begins with the name of the others."""


def shows_queries(request: Request) -> bool:
    """Whether the reply to a request may show queries, of its own or of other operations."""
    if request.name != "aggregate":
        return request.name in ("explain", "currentOp")
    return any(name in _SHOWING_STAGES for name in first_stage_names(request))


def without_filters(frame: bytes | None) -> bytes | None:
    """Return a reply frame without filters; InvalidBSONError if it is malformed."""
    if frame is None or not _is_marked(frame):
        return frame
    return with_body(frame, document_without_filters(response_body(frame)))


def document_without_filters(document: bytes) -> bytes:
    """Return a raw document without filters; InvalidBSONError if it is malformed."""
    return _cleaned(document) or EMPTY_DOCUMENT


def _cleaned(document: bytes) -> bytes | None:
    """Return a document without filters; None if it contained nothing else."""
    only = _only_part(document)
    if only is not None:
        return only
    elements = []
    for name, span in spans(document):
        if name == b"$expr" and _is_filter(document, span):
            continue
        value = _cleaned_value(document[span[2] : span[3]], span[0])
        if value is None and name in _SHOWN_EMPTY:
            value = EMPTY_DOCUMENT
        if value is not None:
            elements.append(element(name, span[0], value))
    return from_elements(b"".join(elements)) if elements or document == EMPTY_DOCUMENT else None


def _only_part(document: bytes) -> bytes | None:
    """Return the single remaining part of ``{$and: […]}``, if any: mongod shows such a query without ``$and``."""
    conjunction = find(document, b"$and")
    if conjunction is None or conjunction[0] != ARRAY or not _is_marked(document[conjunction[2] : conjunction[3]]):
        return None
    parts = [part for part in map(_cleaned, array_documents(document, conjunction)) if part is not None]
    return parts[0] if len(parts) == 1 and len(index(document)) == 1 else None


def _cleaned_value(value: bytes, kind: int) -> bytes | None:
    if kind not in (OBJECT, ARRAY, STRING) or not _is_marked(value):
        return value
    if kind == OBJECT:
        return None if value == NOT_RESERVED else _cleaned(value)
    if kind == STRING:
        return _cut(value)
    found = [(below[0], _cleaned_value(value[below[2] : below[3]], below[0])) for _, below in spans(value)]
    left = [(below, part) for below, part in found if part is not None]
    if not left:
        return None
    return from_elements(b"".join(element(b"%d" % at, below, part) for at, (below, part) in enumerate(left)))


def _cut(string: bytes) -> bytes:
    """Cut a long command, which ``currentOp`` shows as a string, where the filter begins."""
    at = string.find(_TEXT, 4)
    if at < 0:
        return string
    return string_value(string[4:at])


def _is_filter(document: bytes, expression: Span) -> bool:
    """Whether the value of ``$expr`` is an ownership filter."""
    if expression[0] != OBJECT:
        return False
    for name in (b"$let", b"vars"):
        found = find(document, name, expression[2])
        if found is None or found[0] != OBJECT:
            return False
        expression = found
    return any(find(document, name, expression[2]) is not None for name in _VARIABLES)


def _is_marked(value: bytes) -> bool:
    return any(mark in value for mark in _MARKS)


_SHOWS_QUERY: Final = "error processing query: "
_AFTER_QUERY: Final = " planner returned error :: caused by :: "
_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}
_NOT_EXPLAINED: Final = frozenset(
    {
        *(SHARD_VERSION, DATABASE_VERSION, b"$db", b"lsid", b"txnNumber", b"stmtId", b"stmtIds", b"writeConcern"),
        *(b"readConcern", b"$clusterTime", b"$configTime", b"$topologyTime", b"$readPreference", b"maxTimeMS"),
        *(b"autocommit", b"startTransaction"),
    }
)


@may_run_in_reactor
async def without_filter_in_errors(
    mongod: LocalMongod, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request with an ownership filter; return the reply frame, without the filter in error messages.

    Args:
        request: the request as the client sent it.

    Raises:
        CommandError: raised by ``run``, also without the filter.
        BackendError: mongod does not answer.
    """
    try:
        frame = await run()
    except CommandError as error:
        if _AFTER_QUERY in error.message:
            await in_own_task()
            error.message = await _text(mongod, request, None, error.message)
        raise
    if frame is None or _AFTER_QUERY.encode() not in frame:
        return frame
    reply = response_body(frame)
    ok = find(reply, b"ok")
    if ok is not None and decode_value(reply, ok) and find(reply, b"writeErrors") is None:
        return frame  # not an error: a document contains that text
    await in_own_task()
    document: dict[str, Any] = bson.decode(reply, codec_options=VALUE_CODEC)
    if "errmsg" in document:
        document["errmsg"] = await _text(mongod, request, None, document["errmsg"])
    for entry in document.get("writeErrors", ()):
        entry["errmsg"] = await _text(mongod, request, entry["index"], entry.get("errmsg", ""))
    return with_body(frame, bson.encode(document))


async def _text(mongod: LocalMongod, request: Request, position: int | None, text: str) -> str:
    """Return an error message without the filter, for the statement at `position` or for the whole command."""
    if _AFTER_QUERY not in text:
        return text
    explained = element(b"explain", OBJECT, _explained(request, position))
    body = from_elements(explained + encode_elements({"verbosity": "queryPlanner", "$db": request.db}))
    reply = response_body(await mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
    message = find(reply, b"errmsg")
    if message is not None:
        return str(decode_value(reply, message))
    # The error no longer occurs. Without the query, the reason remains.
    return text[: text.index(_SHOWS_QUERY)] + text.partition(_AFTER_QUERY)[2] if _SHOWS_QUERY in text else text


def _explained(request: Request, position: int | None) -> bytes:
    """Return the command to explain, with only the statement at `position` if given."""
    field = _STATEMENTS.get(request.name)
    if field is None or position is None:
        return without(request.body, _NOT_EXPLAINED)
    statement = raw_document(request.documents(field)[position])
    body = without(request.body, _NOT_EXPLAINED | {field})
    return from_elements(body[4:-1] + encode_elements({field.decode(): [statement]}))
