"""One statement of an update or a delete: its fields in place, checked as MongoDB's own parser does.

Only the fields that determine its targets are decoded. As in MongoDB, one malformed statement fails the whole batch
before any of it is executed. Filters and updates are validated by the shards.

On a sharded time-series collection, the rules and the texts of errors are MongoDB 6.0's, with one exception. MongoDB's
shards refuse an update that changes a shard key. This module refuses one that may, because all updates here are of many
documents.
"""

import math
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from shardwright.sharding.bson_text import value_text
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.bucket_filters import bucket_filter
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.targeting.targets import CollectionPlacement
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, duplicate_field, missing_field, unknown_field, wrong_type
from shardwright.wire.rawbson import ARRAY, BOOL, NULL, OBJECT, STRING, Span, spans, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping


# In the order in which MongoDB writes a statement into a message.
_UPDATE_FIELDS: Final = (
    b"q",
    b"u",
    b"c",
    b"arrayFilters",
    b"hint",
    b"multi",
    b"upsert",
    b"upsertSupplied",
    b"collation",
)
_DELETE_FIELDS: Final = (b"q", b"limit", b"hint", b"collation")
_NUMBERS: Final = frozenset({rawbson.INT32, rawbson.INT64, rawbson.DOUBLE, rawbson.DECIMAL128})
_INT64_LIMIT: Final = 2.0**63


class UpdateStyle(Enum):
    """Kind of the ``u`` of an update."""

    OPERATORS = auto()
    REPLACEMENT = auto()
    PIPELINE = auto()
    MIXED = auto()
    """Operators and plain fields in one document, which is invalid."""


class _Statement:
    """Common part of updates and deletes; ``filter`` has the bytes of ``q``."""

    __slots__ = ("collation", "document", "fields", "filter")

    def __init__(self, document: bytes, name: str, known: tuple[bytes, ...]) -> None:
        self.document = document
        self.fields = fields = _read_fields(document, name, known)
        query = fields.get(b"q")
        if query is None or query[0] == NULL:
            raise missing_field(f"{name}.q")
        _check_type(f"{name}.q", query, OBJECT)
        self.filter = document[query[2] : query[3]]
        self.collation: Mapping[str, Any] | None = None
        collation = fields.get(b"collation")
        if collation is not None and collation[0] != NULL:
            _check_type(f"{name}.collation", collation, OBJECT)
            self.collation = rawbson.decode_value(document, collation)
        hint = fields.get(b"hint")
        if hint is not None and hint[0] not in (OBJECT, STRING):
            raise CommandError(ErrorCode.FailedToParse, "Hint must be a string or an object")

    def _text(self, name: bytes) -> str | None:
        """Format one field as MongoDB does in messages, where a hint by name is an object."""
        span = self.fields.get(name)
        if span is None or span[0] == NULL:
            return None
        shown = value_text(self.document, span)
        if name == b"hint" and span[0] == STRING:
            shown = f"{{ $hint: {shown} }}"
        return f"{name.decode(errors='replace')}: {shown}"


class UpdateStatement(_Statement):
    """``{q, u, multi, upsert, …}``."""

    __slots__ = ("is_multi", "is_upsert", "style")

    def __init__(self, document: bytes) -> None:
        """Parse a statement; raise 40414 (missing), 40415 (unknown) or 40413 (repeated field), or TypeMismatch."""
        super().__init__(document, "update.updates", _UPDATE_FIELDS)
        self.is_multi = self._flag(b"multi")
        self.is_upsert = self._flag(b"upsert")
        update = self.fields.get(b"u")
        if update is None:
            raise missing_field("update.updates.u")
        self.style = _style(document, update)
        filters = self.fields.get(b"arrayFilters")
        if filters is not None and filters[0] != NULL:
            _check_type("update.updates.arrayFilters", filters, ARRAY)

    @property
    def replacement(self) -> bytes:
        """Bytes of ``u``."""
        span = self.fields[b"u"]
        return self.document[span[2] : span[3]]

    def __str__(self) -> str:
        shown = {name: self._text(name) for name in _UPDATE_FIELDS}
        shown[b"multi"] = f"multi: {str(self.is_multi).lower()}"
        shown[b"upsert"] = f"upsert: {str(self.is_upsert).lower()}"
        return f"{{ {', '.join(text for text in shown.values() if text)} }}"

    def _flag(self, name: bytes) -> bool:
        span = self.fields.get(name)
        if span is None or span[0] == NULL:
            return False
        _check_type(f"update.updates.{name.decode(errors='replace')}", span, BOOL)
        return self.document[span[2]] != 0


class DeleteStatement(_Statement):
    """``{q, limit, …}``."""

    __slots__ = ("is_single",)

    def __init__(self, document: bytes) -> None:
        """Parse a statement; raise as `UpdateStatement`, and FailedToParse if the limit is neither 0 nor 1."""
        super().__init__(document, "delete.deletes", _DELETE_FIELDS)
        span = self.fields.get(b"limit")
        if span is None:
            raise missing_field("delete.deletes.limit")
        limit = _limit(document, span)
        if limit not in (0, 1):
            raise CommandError(
                ErrorCode.FailedToParse, f"The limit field in delete objects must be 0 or 1. Got {limit}"
            )
        self.is_single = limit == 1

    def __str__(self) -> str:
        shown = {name: self._text(name) for name in _DELETE_FIELDS}
        shown[b"limit"] = f"limit: {int(self.is_single)}"
        return f"{{ {', '.join(text for text in shown.values() if text)} }}"


def _read_fields(document: bytes, name: str, known: tuple[bytes, ...]) -> dict[bytes, Span]:
    fields: dict[bytes, Span] = {}
    for field, span in rawbson.spans(document):
        if field not in known:
            raise unknown_field(f"{name}.{field.decode(errors='replace')}")
        if field in fields:
            raise duplicate_field(f"{name}.{field.decode(errors='replace')}")
        fields[field] = span
    return fields


def _style(document: bytes, span: Span) -> UpdateStyle:
    """Determine the style of an update from the names of its fields; an empty document replaces.

    Raises FailedToParse unless it is an object or an array, and TypeMismatch for a pipeline with a stage that is not an
    object.
    """
    if span[0] == ARRAY:
        if any(stage[0] != OBJECT for _, stage in rawbson.spans(document, span[2])):
            raise CommandError(ErrorCode.TypeMismatch, "Each element of the 'pipeline' array must be an object")
        return UpdateStyle.PIPELINE
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.FailedToParse, "Update argument must be either an object or an array")
    style: UpdateStyle | None = None
    for name, _ in rawbson.spans(document, span[2]):
        this = UpdateStyle.OPERATORS if name.startswith(b"$") else UpdateStyle.REPLACEMENT
        if style is not None and style is not this:
            return UpdateStyle.MIXED
        style = this
    return style or UpdateStyle.REPLACEMENT


def _limit(document: bytes, span: Span) -> int:
    """Read a limit as MongoDB does: anything but a number is 0."""
    if span[0] not in _NUMBERS:
        return 0
    value = rawbson.decode_value(document, span)
    number = float(value.to_decimal() if span[0] == rawbson.DECIMAL128 else value)
    if math.isnan(number):
        return 0
    return int(max(-_INT64_LIMIT, min(number, _INT64_LIMIT)))


def _check_type(name: str, span: Span, expected: int) -> None:
    if span[0] != expected:
        raise wrong_type(name, span[0], type_name(expected))


FULL_KEY_MISSING: Final = 31025
"""MongoDB's number for an update of the shard key that does not name the present one."""


def shard_of_measurement(measurement: bytes, fields: TimeSeriesFields, table: CollectionPlacement) -> str:
    """Return the shard of the bucket for a measurement.

    Raises 5743702 if it has no time, ShardKeyNotFound if the metadata has an array on a path of the key.
    """
    return table.shard_for_key(table.key_pattern.key_bytes_of_document(fields.bucket_of(measurement)))


def filter_of_update(update: UpdateStatement, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bytes:
    """Return the filter of the buckets that an update may change.

    Raises:
        CommandError: InvalidOptions, the update is not ``multi``, or an upsert; 31025 or InvalidOptions, it may change
            the shard key.
    """
    if not update.is_multi:
        raise CommandError(
            ErrorCode.InvalidOptions, "A {multi:false} update on a sharded timeseries collection is disallowed."
        )
    if update.is_upsert:
        raise CommandError(
            ErrorCode.InvalidOptions, "An {upsert:true} update on a sharded timeseries collection is disallowed."
        )
    filter_document = bucket_filter(update.filter, fields)
    if update.style is UpdateStyle.OPERATORS and _touches_key(update.replacement, fields, pattern):
        if exact_shard_key(filter_document, pattern) is None:
            raise CommandError(
                FULL_KEY_MISSING, "Shard key update is not allowed without specifying the full shard key in the query"
            )
        raise CommandError(
            ErrorCode.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field."
        )
    return filter_document


def filter_of_delete(delete: DeleteStatement, fields: TimeSeriesFields) -> bytes:
    """Return the filter of the buckets that a delete may remove; raise IllegalOperation for a single document."""
    if delete.is_single:
        raise CommandError(ErrorCode.IllegalOperation, "Cannot perform a non-multi delete on a time-series collection")
    return bucket_filter(delete.filter, fields)


def _touches_key(operators: bytes, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bool:
    """Whether operators name a field of the shard key, or one above or below it."""
    for operator, operand in spans(operators):
        if operand[0] != OBJECT:
            continue
        for path, (kind, _, value, end) in spans(operators, operand[2]):
            named = [path]
            if operator == b"$rename" and kind == STRING:
                named.append(operators[value + 4 : end - 1])
            if any(_is_on_key(each, fields, pattern) for each in named):
                return True
    return False


def _is_on_key(path: bytes, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bool:
    renamed = fields.renamed(path.decode(errors="replace"))
    if renamed is None:
        return False
    parts = renamed.encode().split(b".")
    # A positional part ($, $[], $[id]) may stand for any name.
    return any(
        all(left == right or left.startswith(b"$") for left, right in zip(parts, field.path, strict=False))
        for field in pattern.fields
    )
