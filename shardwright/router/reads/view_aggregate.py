"""Reads of views, ``find``, ``count`` and ``distinct``, rewritten as aggregations the way mongod does it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import bson

from shardwright.router.reads.count import CountArguments
from shardwright.router.reads.find_arguments import FindArguments, filter_of
from shardwright.router.reads.view_fields import check_fields, check_find
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    append,
    array_of_documents,
    decode_document,
    decode_value,
    element,
    encode_document,
    encode_elements,
    from_elements,
    string_value,
    without,
)
from shardwright.wire.request import Request

COUNTED: Final = "count"
"""The field of the one document that an aggregated ``count`` returns."""

DISTINCT: Final = "distinct"
"""Likewise of a ``distinct``: the array of values."""

_UNWOUND: Final = "_internalUnwoundArray"
_KEY_STRUCT: Final = "distinct"

_NO_AGGREGATION: Final = {
    **{name: f"Option {name.decode()} not supported in aggregation." for name in (b"min", b"max")},
    **{
        name: f"Option {name.decode()} not supported in aggregation."
        for name in (
            b"returnKey",
            b"showRecordId",
            b"noCursorTimeout",
            b"allowPartialResults",
            b"readOnce",
            b"allowSpeculativeMajorityRead",
        )
    },
    b"tailable": "Tailable cursors are not supported in aggregation.",
}
_FIND_ONLY: Final = frozenset(
    {
        *_NO_AGGREGATION,
        *(b"find", b"filter", b"sort", b"projection", b"skip", b"limit", b"batchSize", b"singleBatch"),
        *(b"awaitData", b"oplogReplay", b"options", b"$_requestResumeToken", b"$_resumeAfter"),
    }
)
_LIMIT_NOT_POSITIVE: Final = 15958

_COUNT_ONLY: Final = frozenset({b"count", b"query", b"limit", b"skip", b"fields"})
_DISTINCT_ONLY: Final = frozenset({b"distinct", b"key", b"query"})


def as_aggregate(request: Request) -> Request:
    """The aggregation equivalent to a read of a view; an ``aggregate`` is returned unchanged.

    Raises:
        CommandError: an argument is invalid; InvalidPipelineOperator, it has no equivalent in an aggregation.
    """
    if request.name not in _CONVERTED:
        return with_body(request, request.body)
    check_fields(request)
    return with_body(request, _CONVERTED[request.name](request))


def with_body(request: Request, body: bytes) -> Request:
    """The same request with another body, keeping its request id."""
    return Request(OpMsg(op_msg(body, request_id=request.message.request_id)))


def distinct_stages(key: str) -> list[dict[str, Any]]:
    """The stages that collect the values of a field, as mongod writes them."""
    values = {_UNWOUND: {"$_internalFindAllValuesAtPath": {"$literal": key}}}
    return [
        {"$replaceRoot": {"newRoot": values}},
        {"$unwind": {"path": f"${_UNWOUND}", "preserveNullAndEmptyArrays": True}},
        {"$group": {"_id": None, DISTINCT: {"$addToSet": f"${_UNWOUND}"}}},
    ]


def _find(request: Request) -> bytes:
    check_find(request)
    _check_can_be_aggregated(request)
    arguments = FindArguments.parse(request)
    stages = _match(filter_of(request))
    rest = without(request.body, _FIND_ONLY)
    sort = request.raw_object(b"sort") or EMPTY_DOCUMENT
    order: dict[str, Any] = decode_document(sort)
    if "$natural" in order:
        if request.get(b"hint"):
            raise CommandError(ErrorCode.BadValue, "index hint not allowed with $natural sort order")
        rest = append(without(rest, (b"hint",)), encode_elements({"hint": {"$natural": order["$natural"]}}))
    elif sort != EMPTY_DOCUMENT:
        stages.append(_stage(b"$sort", sort))
    stages += _skip_and_limit(arguments.skip, arguments.limit)
    projection = request.raw_object(b"projection") or EMPTY_DOCUMENT
    if projection != EMPTY_DOCUMENT:
        stages.append(_stage(b"$project", projection))
    size = {} if arguments.batch_size is None else {"batchSize": bson.Int64(arguments.batch_size)}
    return _aggregate(request, stages, rest, cursor=size)


def _count(request: Request) -> bytes:
    arguments = CountArguments.parse(request)
    if b"limit" in request.fields and not arguments.limit:
        raise CommandError(_LIMIT_NOT_POSITIVE, "the limit must be positive")
    stages = [
        *_match(arguments.query),
        *_skip_and_limit(arguments.skip, arguments.limit),
        encode_document({"$count": COUNTED}),
    ]
    return _aggregate(request, stages, without(request.body, _COUNT_ONLY))


def _distinct(request: Request) -> bytes:
    query = Arguments.of(request, _KEY_STRUCT).maybe_raw(b"query")
    stages = [encode_document(stage) for stage in distinct_stages(Arguments.of(request, _KEY_STRUCT).string(b"key"))]
    return _aggregate(request, [*_match(query or EMPTY_DOCUMENT), *stages], without(request.body, _DISTINCT_ONLY))


_CONVERTED: Final[Mapping[str, Callable[[Request], bytes]]] = {"find": _find, "count": _count, "distinct": _distinct}


def _check_can_be_aggregated(request: Request) -> None:
    for name, message in _NO_AGGREGATION.items():
        span = request.fields.get(name)
        if span is not None and decode_value(request.body, span):
            raise CommandError(ErrorCode.InvalidPipelineOperator, message)
    if (
        Arguments.of(request).boolean(b"singleBatch", strictness=Strictness.OPTIONAL_BOOL)
        and request.get(b"limit") != 1
    ):
        raise CommandError(ErrorCode.InvalidPipelineOperator, "Option singleBatch not supported in aggregation.")


def _match(query: bytes) -> list[bytes]:
    return [] if query == EMPTY_DOCUMENT else [_stage(b"$match", query)]


def _skip_and_limit(skip: int, limit: int) -> list[bytes]:
    stages = []
    if skip:
        stages.append(encode_document({"$skip": bson.Int64(skip)}))
    if limit:
        stages.append(encode_document({"$limit": bson.Int64(limit)}))
    return stages


def _stage(name: bytes, specification: bytes) -> bytes:
    return from_elements(element(name, OBJECT, specification))


def _aggregate(request: Request, stages: list[bytes], rest: bytes, *, cursor: Mapping[str, Any] | None = None) -> bytes:
    """An ``aggregate`` on the collection that a request reads.

    Args:
        request: the read.
        stages: raw.
        rest: a raw document with the fields to copy.
        cursor: its argument ``cursor``.
    """
    return from_elements(
        element(b"aggregate", STRING, string_value(request.collection))
        + element(b"pipeline", ARRAY, array_of_documents(stages))
        + encode_elements({"cursor": dict(cursor or {})})
        + rest[4:-1]
    )
