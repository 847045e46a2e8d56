"""The arguments of ``find`` that matter to the router, and the command for each of several shards."""

import math
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.router.reads.field_order import FieldOrder
from shardwright.router.reads.sort_order import NEAREST_FIRST, SORT_KEY, SortOrder
from shardwright.sharding.bson_text import document_text
from shardwright.wire.arguments import INT64_MAX, Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    decode_document,
    element,
    encode_elements,
    index,
    spans,
    without,
)
from shardwright.wire.request import Request

_STRUCT: Final = "FindCommandRequest"
_SPARE_SECONDS_MAX: Final = 0.1
"""As in mongos: a quarter of the time that a ``find`` may take, but no more than this, is reserved for the reply."""

_NEAR_OPERATORS: Final = (b"$near", b"$nearSphere", b"$geoNear")
_LOGICAL_OPERATORS: Final = (b"$and",)

# Fields that the router removes from the command for several shards; some are added again with other values.
_REWRITTEN: Final = frozenset({b"skip", b"limit", b"singleBatch", b"projection"})


@dataclass(frozen=True, slots=True)
class FindArguments:
    """The arguments of a ``find`` that goes to several shards.

    Attributes:
        order: the order in which results are merged, None for any.
        field_order: the same, if it can be read from the documents without a ``$sortKey``, provided that the collation
            is the simple one; otherwise None.
        projection: the raw projection, None if there is none.
        skip: documents to skip.
        limit: documents to return in all, 0 for no limit.
        batch_size: documents in the first batch; None for the default, 0 for none.
        is_single_batch: the cursor is closed after the first batch.
        allows_partial_results: shards that cannot be reached are left out.
    """

    order: SortOrder | None
    field_order: FieldOrder | None
    projection: bytes | None
    skip: int
    limit: int
    batch_size: int | None
    is_single_batch: bool
    allows_partial_results: bool

    @classmethod
    def parse(cls, request: Request) -> "FindArguments":
        """Check the arguments as MongoDB does.

        Raises:
            CommandError: TypeMismatch, 51024 for a negative number, BadValue for a projection on ``$sortKey`` or a
                resume token, Overflow when limit and skip have no int64 sum.
        """
        given = Arguments.of(request, _STRUCT)
        projection = given.maybe_raw(b"projection")
        if projection is not None and SORT_KEY in index(projection):
            raise CommandError(
                ErrorCode.BadValue, f"Projection contains illegal field '$sortKey': {document_text(projection)}"
            )
        if b"$_requestResumeToken" in request.fields or b"$_resumeAfter" in request.fields:
            raise CommandError(ErrorCode.BadValue, "Queries on mongoS may not request or provide a resume token")
        order = _order(request)
        arguments = cls(
            order=order,
            field_order=_field_order(given, order, projection),
            projection=projection,
            skip=given.maybe_integer(b"skip") or 0,
            limit=given.maybe_integer(b"limit") or 0,
            batch_size=given.maybe_integer(b"batchSize"),
            is_single_batch=given.boolean(b"singleBatch", strictness=Strictness.OPTIONAL_BOOL),
            allows_partial_results=allows_partial_results(request),
        )
        if arguments.limit + arguments.skip > INT64_MAX:
            raise CommandError(
                ErrorCode.Overflow,
                "sum of limit and skip cannot be represented as a 64-bit integer, "
                f"limit: {arguments.limit}, skip: {arguments.skip}",
            )
        return arguments

    def body_for_shards(self, body: bytes, *, has_sort_keys: bool = True) -> bytes:
        """The command for each of several shards, made from the client's.

        Every shard returns its candidates for the first ``skip + limit`` results.

        Args:
            body: the client's command.
            has_sort_keys: whether shards add their sort keys to the results, if there is a sort.
        """
        changed: dict[str, Any] = {}
        if self.limit:
            changed["limit"] = bson.Int64(self.limit + self.skip)
        elements = encode_elements(changed)
        if self.order is not None and has_sort_keys:
            kind = "geoNearDistance" if self.order.is_whole_key else "sortKey"
            sort_key = encode_elements({SORT_KEY.decode(): {"$meta": kind}})
            elements += element(b"projection", OBJECT, append(self.projection or EMPTY_DOCUMENT, sort_key))
        elif self.projection is not None:
            elements += element(b"projection", OBJECT, self.projection)
        return append(without(body, _REWRITTEN), elements)


def allows_partial_results(request: Request) -> bool:
    """Whether shards that cannot be reached are left out of the result of a ``find``.

    Raises:
        CommandError: TypeMismatch.
    """
    return Arguments.of(request).boolean(b"allowPartialResults", strictness=Strictness.OPTIONAL_BOOL)


def patience_seconds(request: Request) -> float:
    """How long to wait for shards that may be left out: less than ``maxTimeMS``, to leave time for the reply."""
    seconds = float(request.get(b"maxTimeMS", 0)) / 1000
    return seconds - min(seconds / 4, _SPARE_SECONDS_MAX) if seconds else math.inf


def is_immortal(request: Request) -> bool:
    """Whether the cursor of a ``find`` has no idle timeout.

    Raises:
        CommandError: TypeMismatch.
    """
    return Arguments.of(request).boolean(b"noCursorTimeout", strictness=Strictness.OPTIONAL_BOOL)


def filter_of(request: Request) -> bytes:
    """The raw filter, empty if there is none.

    Raises:
        CommandError: TypeMismatch.
    """
    span = request.fields.get(b"filter")
    if span is None:
        return EMPTY_DOCUMENT
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, "Expected field filterto be of type object")
    return request.raw(span)


def collation_of(request: Request) -> dict[str, Any] | None:
    """The command's collation, None if it has none.

    Raises:
        CommandError: TypeMismatch.
    """
    raw = request.raw_object(b"collation")
    return None if raw is None else decode_document(raw)


def _order(request: Request) -> SortOrder | None:
    sort = request.fields.get(b"sort")
    if sort is not None and sort[0] == OBJECT and sort[3] - sort[2] > len(EMPTY_DOCUMENT):
        return SortOrder.parse(request.raw(sort))
    return NEAREST_FIRST if is_near(filter_of(request)) else None


def _field_order(given: Arguments, order: SortOrder | None, projection: bytes | None) -> FieldOrder | None:
    """The order, if the shards' results contain the fields that it is about."""
    sort = None if order is None else given.maybe_raw(b"sort")
    if order is None or sort is None or given.boolean(b"returnKey", strictness=Strictness.OPTIONAL_BOOL):
        return None
    found = FieldOrder.of(sort, order)
    return found if found is not None and found.is_kept_by(projection) else None


def is_near(filter_document: bytes, start: int = 0) -> bool:
    """Whether a filter has a ``$near`` or similar operator, whose results are sorted by distance."""
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
