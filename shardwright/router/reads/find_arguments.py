"""The arguments of ``find`` and ``getMore`` that the router interprets, and the command for each of several shards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import bson

from shardwright.router.placement.limit_shares import LimitShares
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS
from shardwright.router.reads.sort_order import NEAREST_FIRST, SORT_KEY, FieldOrder, SortOrder
from shardwright.sharding.bson_text import document_text
from shardwright.wire.arguments import INT64_MAX, Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    NULL,
    OBJECT,
    append,
    decode_document,
    element,
    encode_elements,
    find,
    index,
    spans,
    with_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import MAX_TIME_MS, max_time_ms

FIND_STRUCT: Final = "FindCommandRequest"
_SPARE_SECONDS_MAX: Final = 0.1
"""Maximum time reserved for the reply to a ``find``; mongos reserves a quarter of its time limit, but at most this."""

_NEAR_OPERATORS: Final = (b"$near", b"$nearSphere", b"$geoNear")
_LOGICAL_OPERATORS: Final = (b"$and",)

_KNOWN_SORTS_MAX: Final = 1_024
_KNOWN_BYTES_MAX: Final = 256
"""Maximum length of a cached sort."""

REFUSED_TOKEN: Final = "Queries on mongoS may not request or provide a resume token"
"""Mongos's error text for a resume token."""

_REQUEST_RESUME_TOKEN: Final = b"$_requestResumeToken"
_RESUME_AFTER: Final = b"$_resumeAfter"
_RECORD_IDS: Final = (INT64, BINARY, NULL)
_OF_MONGOD: Final = frozenset({b"ntoreturn", _REQUEST_RESUME_TOKEN, _RESUME_AFTER})

REWRITTEN: Final = frozenset({b"skip", b"limit", b"singleBatch", b"projection"})
"""Fields removed from the command for several shards. Some are appended again, the limit first."""


@dataclass(frozen=True, slots=True)
class FindArguments:
    """The arguments of a ``find`` on several shards.

    Attributes:
        order: the order in which results are merged, None for any.
        field_order: the same, if it can be read from the documents without a ``$sortKey``, provided that the collation
            is the simple one; otherwise None.
        limit: total number of documents to return, 0 for no limit.
        batch_size: documents in the first batch; None for the default, 0 for none.
        is_single_batch: whether the cursor is closed after the first batch.
        allows_partial_results: whether unreachable shards are left out.
        is_for_shards: whether the command can be forwarded to several shards unchanged, except for sort keys.
    """

    order: SortOrder | None
    field_order: FieldOrder | None
    projection: bytes | None
    skip: int
    limit: int
    batch_size: int | None
    is_single_batch: bool
    allows_partial_results: bool
    is_for_shards: bool

    @classmethod
    def parse(cls, request: Request) -> "FindArguments":
        """Check the arguments as MongoDB does.

        Raises:
            CommandError: TypeMismatch; 51024 for a negative number; Overflow when the sum of limit and skip is not an
                int64.
        """
        given = Arguments.of(request, FIND_STRUCT)
        projection = given.maybe_raw(b"projection")
        order, field_order = _orders(request)
        if field_order is not None and not _has_its_fields(field_order, given, projection):
            field_order = None
        arguments = cls(
            order=order,
            field_order=field_order,
            projection=projection,
            skip=given.maybe_integer(b"skip") or 0,
            limit=given.maybe_integer(b"limit") or 0,
            batch_size=given.maybe_integer(b"batchSize"),
            is_single_batch=given.boolean(b"singleBatch", strictness=Strictness.OPTIONAL_BOOL),
            allows_partial_results=allows_partial_results(request),
            is_for_shards=_is_for_shards(request),
        )
        if arguments.limit + arguments.skip > INT64_MAX:
            raise CommandError(
                ErrorCode.Overflow,
                "sum of limit and skip cannot be represented as a 64-bit integer, "
                f"limit: {arguments.limit}, skip: {arguments.skip}",
            )
        return arguments

    @property
    def whole_limit(self) -> int:
        """The maximum number of documents including the skipped ones, 0 for no bound."""
        return self.limit + self.skip if self.limit else 0

    def is_sent_unchanged(self, *, has_sort_keys: bool) -> bool:
        """Whether shards receive the client's command, except for a smaller limit; arguments as `body_for_shards`."""
        return self.is_for_shards and (self.order is None or not has_sort_keys)

    def share(self, shares: LimitShares, shard_count: int) -> int | None:
        """Return the number of documents to request from each of several shards if that likely suffices; else None.

        Shares require that the documents are sorted, and fit into one batch from each shard and to the client.
        """
        batch_size = FIRST_BATCH_DOCUMENTS if self.batch_size is None else self.batch_size
        if self.order is None or self.allows_partial_results or not 0 < self.limit <= batch_size:
            return None
        share = shares.share(self.whole_limit, shard_count)
        return share if share is not None and share <= batch_size else None

    def body_for_shards(self, body: bytes, *, has_sort_keys: bool = True, share: int | None = None) -> bytes:
        """Convert the client's command for each of several shards.

        Every shard returns its candidates for the first ``skip + limit`` results.

        Args:
            has_sort_keys: whether shards add sort keys to the results, if there is a sort.
            share: the maximum number of candidates of a shard, None for ``skip + limit``.
        """
        if self.is_sent_unchanged(has_sort_keys=has_sort_keys):
            return body if share is None else _with_limit(body, share)
        keyed_order = self.order if has_sort_keys else None
        changed: dict[str, Any] = {}
        if self.limit:
            changed["limit"] = bson.Int64(self.whole_limit if share is None else share)
        elements = encode_elements(changed)
        if keyed_order is not None:
            kind = "geoNearDistance" if keyed_order.is_whole_key else "sortKey"
            sort_key = encode_elements({SORT_KEY.decode(): {"$meta": kind}})
            elements += element(b"projection", OBJECT, append(self.projection or EMPTY_DOCUMENT, sort_key))
        elif self.projection is not None:
            elements += element(b"projection", OBJECT, self.projection)
        return append(without(body, REWRITTEN), elements)


def allows_partial_results(request: Request) -> bool:
    """Whether unreachable shards are left out of the result of a ``find``."""
    return _is_set(request, b"allowPartialResults")


def patience_seconds(request: Request) -> float:
    """Return how long to wait for shards that may be left out: ``maxTimeMS``, less some time for the reply."""
    seconds = max_time_ms(request) / 1000
    return seconds - min(seconds / 4, _SPARE_SECONDS_MAX) if seconds else math.inf


def is_immortal(request: Request) -> bool:
    """Whether the cursor of a ``find`` has no idle timeout."""
    return _is_set(request, b"noCursorTimeout")


def check_for_mongos(request: Request) -> None:
    """Refuse arguments that mongod accepts and mongos does not, except a requested resume token.

    Raises:
        CommandError: BadValue for a projection on ``$sortKey``; or from `requests_resume_token` or `refuse_ntoreturn`.
    """
    fields = request.fields
    if not _OF_MONGOD.isdisjoint(fields):
        requests_resume_token(request)
        refuse_ntoreturn(request)
    projection = request.raw_object(b"projection") if b"projection" in fields else None
    if projection is not None and SORT_KEY in projection and SORT_KEY in index(projection):
        raise CommandError(
            ErrorCode.BadValue, f"Projection contains illegal field '$sortKey': {document_text(projection)}"
        )


def requests_resume_token(request: Request) -> bool:
    """Whether a ``find`` requests a resume token, which mongos refuses after parsing the query.

    Raises:
        CommandError: TypeMismatch; BadValue for a malformed token, or arguments that exclude a token.
    """
    fields = request.fields
    if _RESUME_AFTER not in fields and _REQUEST_RESUME_TOKEN not in fields:
        return False
    given = Arguments.of(request, FIND_STRUCT)
    is_requested = given.boolean(_REQUEST_RESUME_TOKEN, strictness=Strictness.OPTIONAL_BOOL)
    span = fields.get(_RESUME_AFTER)
    if span is not None and span[0] != OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, "Expected field $_resumeAfterto be of type object")
    token = {} if span is None else index(request.body, span[2])
    if not is_requested:
        if token:
            raise CommandError(ErrorCode.BadValue, "'requestResumeToken' must be true if 'resumeAfter' is specified")
        return False
    if not _is_natural(request.get(b"hint")):
        raise CommandError(ErrorCode.BadValue, "hint must be {$natural:1} if 'requestResumeToken' is enabled")
    sort = request.get(b"sort")
    if sort and not _is_natural(sort):
        raise CommandError(ErrorCode.BadValue, "sort must be unset or {$natural:1} if 'requestResumeToken' is enabled")
    if token and [(name, each[0] in _RECORD_IDS) for name, each in token.items()] != [(b"$recordId", True)]:
        raise CommandError(
            ErrorCode.BadValue,
            "Malformed resume token: the '_resumeAfter' object must contain exactly one field named '$recordId', of "
            "type NumberLong, BinData or jstNULL.",
        )
    return is_requested


def _is_natural(order: object) -> bool:
    """Whether a hint or a sort is ``{$natural: 1}``."""
    return isinstance(order, Mapping) and order == {"$natural": 1} and order["$natural"] is not True


def check_explained(request: Request) -> None:
    """Refuse arguments of a ``find`` inside an ``explain``, where mongos refuses fewer.

    Raises:
        CommandError: BadValue for a token with a binary id, by which a mongod aborts on most collections; or from
            `requests_resume_token` or `refuse_ntoreturn`.
    """
    if requests_resume_token(request):
        token = request.raw_object(_RESUME_AFTER)
        if token is not None and any(span[0] == BINARY for span in index(token).values()):
            raise CommandError(ErrorCode.BadValue, REFUSED_TOKEN)
    refuse_ntoreturn(request)


def refuse_ntoreturn(request: Request) -> None:
    """Refuse an argument of finds before MongoDB 3.2."""
    if b"ntoreturn" in request.fields:
        raise CommandError(5746101, "Cannot specify ntoreturn in a find command against mongos")


def filter_of(request: Request) -> bytes:
    """Return the raw filter, empty if there is none."""
    span = request.fields.get(b"filter")
    if span is None:
        return EMPTY_DOCUMENT
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, "Expected field filterto be of type object")
    return request.raw(span)


def collation_of(request: Request) -> dict[str, Any] | None:
    """Return the command's collation, None if it has none; only a ``find`` refuses null."""
    span = request.fields.get(b"collation")
    if span is None or (span[0] == NULL and request.name != "find"):
        return None
    if span[0] != OBJECT and request.name == "find":
        raise CommandError(ErrorCode.TypeMismatch, "Expected field collationto be of type object")
    raw = request.raw_object(b"collation")
    return None if raw is None else decode_document(raw)


def _is_set(request: Request, name: bytes) -> bool:
    return name in request.fields and Arguments.of(request).boolean(name, strictness=Strictness.OPTIONAL_BOOL)


def _is_for_shards(request: Request) -> bool:
    """Whether the command can be forwarded unchanged.

    That is the usual case, and rewriting a command costs as much as reading it.
    """
    fields = request.fields
    if b"skip" in fields or b"singleBatch" in fields:
        return False
    limit, projection = fields.get(b"limit"), fields.get(b"projection")
    return (limit is None or limit[0] in (INT32, INT64)) and (projection is None or projection[0] == OBJECT)


def _with_limit(body: bytes, limit: int) -> bytes:
    """Replace the limit of a command that `_is_for_shards` by a smaller one."""
    span = find(body, b"limit")
    assert span is not None
    return with_value(body, span, limit.to_bytes(span[3] - span[2], "little"))


def _orders(request: Request) -> tuple[SortOrder | None, FieldOrder | None]:
    """Return the order of the results, and the order read from whole documents, if that is possible."""
    sort = request.fields.get(b"sort")
    if sort is not None and sort[0] == OBJECT and sort[3] - sort[2] > len(EMPTY_DOCUMENT):
        raw = request.raw(sort)
        return _known_orders(request.db, request.collection, raw) if len(raw) <= _KNOWN_BYTES_MAX else _orders_of(raw)
    return (NEAREST_FIRST if is_near(filter_of(request)) else None), None


def _orders_of(sort: bytes) -> tuple[SortOrder | None, FieldOrder | None]:
    order = SortOrder.parse(sort)
    return order, (None if order is None else FieldOrder.of(sort, order))


@lru_cache(_KNOWN_SORTS_MAX)
def _known_orders(_db: str, _collection: str, sort: bytes) -> tuple[SortOrder | None, FieldOrder | None]:
    """Cache the orders of a sort by collection, because `FieldOrder` remembers the layout of its documents."""
    return _orders_of(sort)


def _has_its_fields(order: FieldOrder, given: Arguments, projection: bytes | None) -> bool:
    """Whether the shards' results contain the fields of the order."""
    return not given.boolean(b"returnKey", strictness=Strictness.OPTIONAL_BOOL) and order.is_kept_by(projection)


def is_near(filter_document: bytes, start: int = 0) -> bool:
    """Whether a filter has a ``$near`` or similar operator, so that results are sorted by distance."""
    if b"$near" not in filter_document and b"$geoNear" not in filter_document:
        return False
    for name, (kind, _, value_start, _) in spans(filter_document, start):
        if name in _LOGICAL_OPERATORS and kind == ARRAY:
            branches = [branch[2] for _, branch in spans(filter_document, value_start) if branch[0] == OBJECT]
            if any(is_near(filter_document, branch) for branch in branches):
                return True
        elif kind == OBJECT and any(operator in _NEAR_OPERATORS for operator, _ in spans(filter_document, value_start)):
            return True
    return False


_STRUCT: Final = "getMore"
_KNOWN: Final = frozenset(
    {
        b"getMore",
        b"collection",
        b"batchSize",
        b"maxTimeMS",
        b"term",
        b"lastKnownCommittedOpTime",
        b"comment",
        b"apiVersion",
        b"apiStrict",
        b"apiDeprecationErrors",
        b"lsid",
        b"txnNumber",
        b"autocommit",
        b"startTransaction",
        b"readConcern",
        b"writeConcern",
        b"maxTimeMSOpOnly",
        b"mayBypassWriteBlocking",  # from mongods that read a cursor of the router
    }
)


@dataclass(frozen=True, slots=True)
class GetMoreArguments:
    """The arguments of a ``getMore``.

    Attributes:
        batch_size: the maximum number of documents, None for as many as fit.
        max_time_ms: how long an awaiting cursor may wait, None if not given.
    """

    cursor_id: int
    namespace: str
    batch_size: int | None
    max_time_ms: int | None

    @classmethod
    def parse(cls, request: Request) -> "GetMoreArguments":
        """Check the arguments as mongod does.

        Raises:
            CommandError: TypeMismatch, 40414 (missing), 40415 (unknown field), 51024 (negative), InvalidNamespace.
        """
        arguments = Arguments.of(request, _STRUCT)
        for name in request.fields:
            if name not in _KNOWN and not name.startswith(b"$"):
                raise unknown_field(f"{_STRUCT}.{name.decode(errors='replace')}")
        collection = arguments.string(b"collection")
        batch_size = arguments.maybe_integer(b"batchSize")
        has_max_time = arguments.maybe_integer(MAX_TIME_MS, minimum=None) is not None
        milliseconds = max_time_ms(request)
        _, _, start, end = arguments.span(b"getMore", INT64)
        cursor_id = int.from_bytes(request.body[start:end], "little", signed=True)
        _check_collection_name(collection)
        return cls(cursor_id, f"{request.db}.{collection}", batch_size or None, milliseconds if has_max_time else None)


def _check_collection_name(name: str) -> None:
    """Refuse an invalid collection name."""
    if not name:
        raise CommandError(ErrorCode.InvalidNamespace, "Collection names cannot be empty")
    if "\0" in name:
        raise CommandError(ErrorCode.InvalidNamespace, "Collection names cannot have embedded null characters")
    if name.startswith("."):
        raise CommandError(ErrorCode.InvalidNamespace, f"Collection names cannot start with '.': {name}")
