"""Reads of views, ``find``, ``count`` and ``distinct``, rewritten as aggregations the way mongod does it.

Unknown fields are refused here, because the aggregation would be refused for other fields, or under another name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.router.reads.aggregations import CountArguments
from shardwright.router.reads.find_arguments import FIND_STRUCT, FindArguments, filter_of, requests_resume_token
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import stages_of_buckets, with_hint_for_buckets
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.arguments import GENERIC_ARGUMENTS, Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError, unknown_field
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    append,
    array_documents,
    array_of_documents,
    decode_document,
    decode_value,
    element,
    encode_document,
    encode_elements,
    from_elements,
    index,
    string_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import max_time_ms

_OF_FIND: Final = frozenset(
    {
        *(b"find", b"filter", b"projection", b"sort", b"hint", b"collation", b"skip", b"limit", b"batchSize"),
        *(b"singleBatch", b"allowDiskUse", b"min", b"max", b"returnKey", b"showRecordId", b"tailable", b"awaitData"),
        *(b"oplogReplay", b"noCursorTimeout", b"allowPartialResults", b"readOnce", b"let", b"options", b"ntoreturn"),
        *(b"allowSpeculativeMajorityRead", b"encryptionInformation", b"term"),
        *(b"$_requestResumeToken", b"$_resumeAfter"),
    }
)
_OF_COUNT: Final = frozenset(
    {
        *(b"count", b"query", b"limit", b"skip", b"hint", b"collation", b"fields", b"queryOptions"),
        *(b"encryptionInformation", b"collectionUUID"),
    }
)
_OF_DISTINCT: Final = frozenset({b"distinct", b"key", b"query", b"collation"})
_KNOWN: Final[Mapping[str, tuple[str, frozenset[bytes]]]] = {
    "find": (FIND_STRUCT, _OF_FIND),
    "count": ("count", _OF_COUNT),
    "distinct": ("distinct", _OF_DISTINCT),
}
_OF_ALL_COMMANDS: Final = GENERIC_ARGUMENTS | {
    *(b"$audit", b"$client", b"$clusterTime", b"$configTime", b"$db", b"$oplogQueryData", b"$queryOptions"),
    *(b"$readPreference", b"$replData", b"$topologyTime", b"clientOperationKey", b"stmtId", b"maxTimeMSOpOnly"),
}
_BOOLEANS: Final = (b"returnKey", b"showRecordId", b"tailable", b"noCursorTimeout", b"awaitData", b"readOnce")


def check_fields(request: Request) -> None:
    """Refuse fields that a ``find``, ``count`` or ``distinct`` does not have."""
    struct, known = _KNOWN[request.name]
    for name in request.fields:
        if name not in known and name not in _OF_ALL_COMMANDS:
            raise unknown_field(f"{struct}.{name.decode(errors='replace')}")


def check_find(request: Request) -> None:
    """Check arguments that the aggregation would accept, or refuse with another error.

    Raises:
        CommandError: TypeMismatch, FailedToParse, BadValue.
    """
    given = Arguments.of(request, FIND_STRUCT)
    booleans = {name: given.boolean(name, strictness=Strictness.OPTIONAL_BOOL) for name in _BOOLEANS}
    for name in (b"options", b"let"):
        given.maybe_raw(name)
    if booleans[b"awaitData"] and not booleans[b"tailable"]:
        raise CommandError(ErrorCode.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
    hint = request.fields.get(b"hint")
    names = index(request.body, hint[2]) if hint is not None and hint[0] == OBJECT else {}
    if b"$natural" in names and len(names) > 1:
        shown = document_text(request.raw_object(b"hint") or EMPTY_DOCUMENT)
        raise CommandError(ErrorCode.BadValue, f"Cannot include '$natural' in compound hint: {shown}")
    requests_resume_token(request)
    max_time_ms(request)  # inside an explain it has not been parsed yet


_REPLACED = frozenset({b"aggregate", b"pipeline"})
_NOT_ON_VIEWS = b"$collStats"
_QUERY_OF: Final = {"find": b"filter", "distinct": b"query"}


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """The underlying collection of a view, and the aggregation that defines the view.

    Attributes:
        collation: raw; the view's own, which reads cannot override. Empty for a time-series collection, which may be
            read with any collation.
        time_series: the rules for buckets, if the collection holds buckets.
    """

    namespace: Namespace
    stages: tuple[bytes, ...]
    collation: bytes
    time_series: TimeSeriesFields | None = None

    @classmethod
    def of(cls, reply: bytes) -> "ResolvedView":
        """Parse the body of a CommandOnShardedViewNotSupportedOnMongod.

        Raises:
            RemoteProtocolError: it does not describe a view.
        """
        resolved = index(reply).get(b"resolvedView")
        fields = index(reply, resolved[2]) if resolved is not None and resolved[0] == OBJECT else {}
        name, pipeline, collation = (fields.get(each) for each in (b"ns", b"pipeline", b"collation"))
        if name is None or name[0] != STRING or pipeline is None or pipeline[0] != ARRAY:
            raise RemoteProtocolError("an error about a view without the view's definition")
        stages = tuple(array_documents(reply, pipeline))
        raw_collation = b"" if collation is None or collation[0] != OBJECT else reply[collation[2] : collation[3]]
        options = fields.get(b"timeseriesOptions")
        time_series = None if options is None else TimeSeriesFields.from_document(decode_value(reply, options))
        return cls(Namespace.parse(str(decode_value(reply, name))), stages, raw_collation, time_series)

    def expand(self, request: Request) -> Request:
        """Return the aggregation on the collection that is equivalent to a read of the view.

        Raises:
            CommandError: an argument of the read is wrong, or has no equivalent in an aggregation.
        """
        aggregate = as_aggregate(request)
        _check_text(request)
        stages = aggregate.documents(b"pipeline")
        if stages and next(iter(index(stages[0])), b"") == _NOT_ON_VIEWS:
            raise not_on_view(Namespace(request.db, request.collection))
        kept = without(aggregate.body, _REPLACED | {b"collation"} if self.collation else _REPLACED)
        stages = [*self.stages, *stages]
        if self.time_series is not None:
            stages, kept = stages_of_buckets(stages), with_hint_for_buckets(kept, self.time_series)
        body = from_elements(
            element(b"aggregate", STRING, string_value(self.namespace.collection))
            + element(b"pipeline", ARRAY, array_of_documents(stages))
            + kept[4:-1]
        )
        return with_body(
            request, append(body, element(b"collation", OBJECT, self.collation)) if self.collation else body
        )


def _check_text(request: Request) -> None:
    """Refuse text searches in reads that mongod parses before it looks up a view of that name.

    Raises:
        CommandError: IndexNotFound, because a view has no text index.
    """
    name = _QUERY_OF.get(request.name)
    query = None if name is None else request.raw_object(name)
    if query is not None and b"$text\0" in query and _searches_text(decode_document(query)):
        raise CommandError(
            ErrorCode.IndexNotFound,
            f"text index required for $text query (no such collection '{request.db}.{request.collection}')",
        )


def _searches_text(query: Mapping[str, Any]) -> bool:
    return "$text" in query or any(
        isinstance(each, Mapping) and _searches_text(each)
        for name in ("$and", "$or", "$nor")
        for each in (query[name] if isinstance(query.get(name), list) else ())
    )


def not_on_view(namespace: Namespace) -> CommandError:
    """Return the error for operations that only collections support."""
    return CommandError(ErrorCode.CommandNotSupportedOnView, f"Namespace {namespace} is a view, not a collection")


COUNTED: Final = "count"
"""The field in the single result of an aggregated ``count``."""

DISTINCT: Final = "distinct"
"""The field in the single result of an aggregated ``distinct``, an array of values."""

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
    b"$_requestResumeToken": "Option $_requestResumeToken not supported in aggregation.",
}
_FIND_ONLY: Final = frozenset(
    {
        *_NO_AGGREGATION,
        *(b"find", b"filter", b"sort", b"projection", b"skip", b"limit", b"batchSize", b"singleBatch"),
        *(b"awaitData", b"oplogReplay", b"options", b"$_resumeAfter"),
    }
)
_LIMIT_NOT_POSITIVE: Final = 15958

_COUNT_ONLY: Final = frozenset({b"count", b"query", b"limit", b"skip", b"fields"})
_DISTINCT_ONLY: Final = frozenset({b"distinct", b"key", b"query"})


def as_aggregate(request: Request) -> Request:
    """Convert a read of a view to the equivalent aggregation; return an ``aggregate`` unchanged.

    Raises:
        CommandError: an argument is invalid; InvalidPipelineOperator, it has no equivalent in an aggregation.
    """
    if request.name not in _CONVERTED:
        return with_body(request, request.body)
    check_fields(request)
    return with_body(request, _CONVERTED[request.name](request))


def with_body(request: Request, body: bytes) -> Request:
    """Replace the body of a request, keeping its request id."""
    return Request(OpMsg(op_msg(body, request_id=request.message.request_id)))


def distinct_stages(key: str) -> list[dict[str, Any]]:
    """Return the stages that collect the values of a field, in mongod's form."""
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
    """Build an ``aggregate`` on the collection that a request reads.

    Args:
        rest: a raw document with the fields to copy.
    """
    return from_elements(
        element(b"aggregate", STRING, string_value(request.collection))
        + element(b"pipeline", ARRAY, array_of_documents(stages))
        + encode_elements({"cursor": dict(cursor or {})})
        + rest[4:-1]
    )
