"""Parsing of command arguments, with the rules and errors of MongoDB's command parser (IDL).

Like that parser, treats a null field as missing, whether the field is required or not.
"""

from collections.abc import Container, Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, unknown_field, value_too_small, wrong_type
from shardwright.wire.rawbson import type_name
from shardwright.wire.request import Request, documents_of_array, name_text

INT64_MAX: Final = (1 << 63) - 1
INT64_MIN: Final = -(1 << 63)

NUMBERS: Final = frozenset({rawbson.INT32, rawbson.INT64, rawbson.DOUBLE, rawbson.DECIMAL128})
NUMBER_NAMES: Final = ("long", "int", "decimal", "double")
"""Type names of numbers, in the order of MongoDB's error messages."""

GENERIC_ARGUMENTS: Final = frozenset(
    {
        *(b"apiDeprecationErrors", b"apiStrict", b"apiVersion", b"comment", b"lsid", b"maxTimeMS", b"readConcern"),
        *(b"txnNumber", b"autocommit", b"startTransaction", b"writeConcern", b"mayBypassWriteBlocking"),
    }
)
"""Arguments that every command accepts, besides those whose names begin with a dollar sign."""

_UUID_BYTES: Final = 16


class Strictness(Enum):
    """Values that a boolean argument accepts, named after the types in MongoDB's parser."""

    SAFE_BOOL = "safeBool"
    """A boolean or a number; 0 is false."""

    BOOL = "bool"
    """Only a boolean."""

    OPTIONAL_BOOL = "optionalBool"
    """Only a boolean, with a different error message; null is refused too."""

    EXTRACTED = "bsonExtractBooleanField"
    """As `OPTIONAL_BOOL`, with the error message for fields that MongoDB reads without its parser."""


_NULL_IS_A_VALUE: Final = frozenset({Strictness.OPTIONAL_BOOL, Strictness.EXTRACTED})


class Arguments:
    """The fields of a command, or of a document in it.

    Methods raise 40414 for a missing field and TypeMismatch for a wrong type. The ``maybe_`` methods return None for a
    missing field.
    """

    __slots__ = ("_fields", "_path", "document")

    def __init__(self, document: bytes, path: str, fields: Mapping[bytes, rawbson.Span] | None = None) -> None:
        """Index a document.

        Args:
            path: the name of the document in errors.
            fields: the spans of its fields, if already known.
        """
        self.document = document
        self._path = path
        self._fields = rawbson.index(document) if fields is None else fields

    @classmethod
    def of(cls, request: Request, struct: str | None = None) -> "Arguments":
        """Read the arguments of a command; ``struct`` is their name in MongoDB's errors, by default the command's."""
        return cls(request.body, struct or request.name, request.fields)

    def refuse_unknown(self, known: Container[bytes]) -> None:
        """Raise 40415 for arguments that neither this command nor every command accepts."""
        for name in self._fields:
            if name not in known and name not in GENERIC_ARGUMENTS and not name.startswith(b"$"):
                raise unknown_field(self._path_of(name))

    def has(self, name: bytes) -> bool:
        """Whether the field is present, even if null."""
        return name in self._fields

    def is_null(self, name: bytes) -> bool:
        """Whether the field is present and null."""
        span = self._fields.get(name)
        return span is not None and span[0] == rawbson.NULL

    def string(self, name: bytes) -> str:
        """Read a string."""
        return str(rawbson.decode_value(self.document, self.span(name, rawbson.STRING)))

    def namespace(self, name: bytes) -> str:
        """Read the name of a database or collection (`name_text`)."""
        span = self.span(name, rawbson.STRING)
        return name_text(self.document[span[2] + 4 : span[3] - 1])

    def maybe_string(self, name: bytes) -> str | None:
        """Read an optional string."""
        return None if self._is_missing(name) else self.string(name)

    def boolean(self, name: bytes, default: bool = False, strictness: Strictness = Strictness.SAFE_BOOL) -> bool:
        """Read a boolean, or return its default."""
        span = self._fields.get(name)
        if span is None or (span[0] == rawbson.NULL and strictness not in _NULL_IS_A_VALUE):
            return default
        return self._boolean(name, span, strictness)

    def required_boolean(self, name: bytes, strictness: Strictness = Strictness.SAFE_BOOL) -> bool:
        """Read a required boolean."""
        return self._boolean(name, self._required(name), strictness)

    def maybe_integer(self, name: bytes, *, minimum: int | None = 0) -> int | None:
        """Read a number, truncated and clamped to an int64 (MongoDB's ``safeInt64``); raise 51024 below ``minimum``."""
        span = self._fields.get(name)
        if span is None or span[0] == rawbson.NULL:
            return None
        if span[0] not in NUMBERS:
            raise wrong_type(self._path_of(name), span[0], *NUMBER_NAMES)
        value = clamp_int64(rawbson.decode_value(self.document, span))
        if minimum is not None and value < minimum:
            raise value_too_small(name.decode(errors="replace"), value, minimum)
        return value

    def maybe_number(self, name: bytes) -> float | None:
        """Read a number as a double (MongoDB's ``safeDouble``)."""
        if self._is_missing(name):
            return None
        span = self._fields[name]
        if span[0] not in NUMBERS:
            raise wrong_type(self._path_of(name), span[0], *NUMBER_NAMES)
        value = rawbson.decode_value(self.document, span)
        return float(value.to_decimal() if isinstance(value, Decimal128) else value)

    def enumeration(self, name: bytes, values: range, default: int) -> int:
        """Read an integer, or return its default; raise BadValue if it is not in ``values``."""
        if self._is_missing(name):
            return default
        span = self._fields[name]
        if span[0] not in NUMBERS:
            raise wrong_type(self._path_of(name), span[0], "int")
        value = rawbson.decode_value(self.document, span)
        if value not in values:
            raise CommandError(
                ErrorCode.BadValue,
                f"Enumeration value '{value}' for field '{self._path_of(name)}' is not a valid value.",
            )
        return int(value)

    def object_id(self, name: bytes) -> ObjectId:
        """Read an ObjectId."""
        value: ObjectId = rawbson.decode_value(self.document, self.span(name, rawbson.OBJECT_ID))
        return value

    def timestamp(self, name: bytes) -> Timestamp:
        """Read a timestamp."""
        value: Timestamp = rawbson.decode_value(self.document, self.span(name, rawbson.TIMESTAMP))
        return value

    def uuid(self, name: bytes) -> UUID:
        """Read a UUID; raise InvalidUUID if it is not 16 bytes long."""
        value = bytes(rawbson.decode_value(self.document, self.span(name, rawbson.BINARY)))
        if len(value) != _UUID_BYTES:
            raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
        return UUID(bytes=value)

    def maybe_uuid(self, name: bytes) -> UUID | None:
        """Read an optional UUID."""
        return None if self._is_missing(name) else self.uuid(name)

    def raw(self, name: bytes) -> bytes:
        """Return the raw bytes of a document."""
        _, _, start, end = self.span(name, rawbson.OBJECT)
        return self.document[start:end]

    def maybe_raw(self, name: bytes) -> bytes | None:
        """Return the raw bytes of an optional document."""
        return None if self._is_missing(name) else self.raw(name)

    def strings(self, name: bytes) -> list[str]:
        """Read an array of strings."""
        array = self.span(name, rawbson.ARRAY)
        found = []
        for position, element in rawbson.spans(self.document, array[2]):
            if element[0] != rawbson.STRING:
                path = f"{self._path_of(name)}.{position.decode(errors='replace')}"
                raise wrong_type(path, element[0], type_name(rawbson.STRING))
            found.append(str(rawbson.decode_value(self.document, element)))
        return found

    def raw_documents(self, name: bytes) -> list[bytes]:
        """Return the documents of an array as raw bytes; raise InvalidBSON if they are malformed."""
        return documents_of_array(self.document, self.span(name, rawbson.ARRAY), self._path_of(name))

    def maybe_raw_documents(self, name: bytes) -> list[bytes] | None:
        """Return the documents of an optional array as raw bytes."""
        return None if self._is_missing(name) else self.raw_documents(name)

    def maybe_nested(self, name: bytes) -> "Arguments | None":
        """Index an optional nested document."""
        return None if self._is_missing(name) else self.nested(name)

    def nested(self, name: bytes) -> "Arguments":
        """Index a nested document."""
        return Arguments(self.raw(name), self._path_of(name))

    def value(self, name: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Decode a field of any type; return None if it is missing."""
        span = self._fields.get(name)
        return None if span is None else rawbson.decode_value(self.document, span)

    def required_value(self, name: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Decode a required field of any type."""
        return rawbson.decode_value(self.document, self._required(name))

    def present(self, *names: bytes) -> dict[str, Any]:
        """Decode all named fields that are present, to build a command with the same fields."""
        return {name.decode(errors="replace"): self.value(name) for name in names if name in self._fields}

    def span(self, name: bytes, *kinds: int) -> rawbson.Span:
        """Return the span of a required field of one of these types."""
        span = self._required(name)
        if span[0] not in kinds:
            raise wrong_type(self._path_of(name), span[0], type_name(kinds[0]))
        return span

    def _boolean(self, name: bytes, span: rawbson.Span, strictness: Strictness) -> bool:
        if span[0] == rawbson.BOOL:
            return self.document[span[2]] != 0
        if strictness is Strictness.OPTIONAL_BOOL:
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"Field '{name.decode(errors='replace')}' should be a boolean value, but found: {type_name(span[0])}",
            )
        if strictness is Strictness.EXTRACTED:
            raise CommandError(
                ErrorCode.TypeMismatch,
                f'"{name.decode(errors="replace")}" had the wrong type. Expected bool, found {type_name(span[0])}',
            )
        if strictness is Strictness.BOOL:
            raise wrong_type(self._path_of(name), span[0], "bool")
        if span[0] not in NUMBERS:
            raise wrong_type(self._path_of(name), span[0], "bool", *NUMBER_NAMES)
        value = rawbson.decode_value(self.document, span)
        return bool(value.to_decimal() if isinstance(value, Decimal128) else value)

    def _required(self, name: bytes) -> rawbson.Span:
        span = self._fields.get(name)
        if span is None or span[0] == rawbson.NULL:
            raise missing_field(self._path_of(name))
        return span

    def _is_missing(self, name: bytes) -> bool:
        span = self._fields.get(name)
        return span is None or span[0] == rawbson.NULL

    def _path_of(self, name: bytes) -> str:
        return f"{self._path}.{name.decode(errors='replace')}"


def clamp_int64(value: int | float | Decimal128) -> int:
    """Convert a number like MongoDB's ``safeNumberLong``: clamped to an int64, NaN to 0.

    A double is truncated, a decimal rounded to the nearest integer, half to even.
    """
    exact = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if exact.is_nan():
        return 0
    if exact.is_infinite() or not INT64_MIN <= exact <= INT64_MAX:
        return INT64_MIN if exact < 0 else INT64_MAX
    return int(exact.to_integral_value(ROUND_HALF_EVEN) if isinstance(value, Decimal128) else exact)
