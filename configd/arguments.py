"""Arguments of commands, checked as MongoDB's command parser checks them."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from sharding.versions import MISSING_FIELD, ChunkVersion
from wire import rawbson
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.request import Request
from wire.type_names import type_name

_UUID_BYTES: Final = 16
_NUMBERS: Final = frozenset({rawbson.INT32, rawbson.INT64, rawbson.DOUBLE, rawbson.DECIMAL128})
_BOOLEANS: Final = _NUMBERS | {rawbson.BOOL}


class Arguments:
    """The fields of a command, or of a document in it.

    The methods raise 40414 for a field that is missing and TypeMismatch for one of another type; those named
    ``maybe_`` give None for a field that is missing.
    """

    def __init__(self, document: bytes, path: str, fields: Mapping[bytes, rawbson.Span] | None = None) -> None:
        self._document = document
        self._path = path
        self._fields = rawbson.index(document) if fields is None else fields

    @classmethod
    def of_request(cls, request: Request) -> "Arguments":
        """The arguments of a command."""
        return cls(request.body, request.name, request.fields)

    def has(self, name: str) -> bool:
        """Whether the field is there."""
        return name.encode() in self._fields

    def is_null(self, name: str) -> bool:
        """Whether the field is there and null."""
        span = self._fields.get(name.encode())
        return span is not None and span[0] == rawbson.NULL

    def string(self, name: str) -> str:
        """A string."""
        return str(self._value(name, {rawbson.STRING}, "string"))

    def maybe_string(self, name: str) -> str | None:
        """A string, or None."""
        return self.string(name) if self.has(name) else None

    def boolean(self, name: str, default: bool) -> bool:
        """A boolean, or a number other than 0 as true."""
        return bool(self._value(name, _BOOLEANS, "bool")) if self.has(name) else default

    def enumeration(self, name: str, values: range, default: int) -> int:
        """A whole number out of a few.

        Raises:
            CommandError: TypeMismatch; BadValue, none of them.
        """
        value = self._value(name, _NUMBERS, "int") if self.has(name) else default
        if value not in values:
            raise CommandError(
                ErrorCode.BadValue,
                f"Enumeration value '{value}' for field '{self._path}.{name}' is not a valid value.",
            )
        return int(value)

    def object_id(self, name: str) -> ObjectId:
        """An ObjectId."""
        value: ObjectId = self._value(name, {rawbson.OBJECT_ID}, "objectId")
        return value

    def timestamp(self, name: str) -> Timestamp:
        """A timestamp."""
        value: Timestamp = self._value(name, {rawbson.TIMESTAMP}, "timestamp")
        return value

    def uuid(self, name: str) -> UUID:
        """A UUID."""
        value = bytes(self._value(name, {rawbson.BINARY}, "binData"))
        if len(value) != _UUID_BYTES:
            raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
        return UUID(bytes=value)

    def maybe_uuid(self, name: str) -> UUID | None:
        """A UUID, or None."""
        return self.uuid(name) if self.has(name) else None

    def document(self, name: str) -> bytes:
        """A document as it lies in the message."""
        _, _, start, end = self._span(name, {rawbson.OBJECT}, "object")
        return self._document[start:end]

    def maybe_document(self, name: str) -> bytes | None:
        """A document as it lies in the message, or None."""
        return self.document(name) if self.has(name) else None

    def documents(self, name: str) -> list[bytes]:
        """An array of documents, as they lie in the message."""
        span = self._span(name, {rawbson.ARRAY}, "array")
        try:
            return rawbson.array_documents(self._document, span)
        except rawbson.InvalidBSONError as error:
            raise CommandError(ErrorCode.TypeMismatch, f"BSON field '{self._path}.{name}': {error}") from error

    def nested(self, name: str) -> "Arguments":
        """The fields of a document."""
        return Arguments(self.document(name), f"{self._path}.{name}")

    def version(self, name: str) -> ChunkVersion:
        """A chunk version."""
        return ChunkVersion.from_span(self._document, self._span(name, {rawbson.OBJECT, rawbson.ARRAY}, "object"))

    def value(self, name: str) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Whatever the field holds, None when it is missing."""
        span = self._fields.get(name.encode())
        return None if span is None else rawbson.decode_value(self._document, span)

    def _value(self, name: str, kinds: frozenset[int] | set[int], expected: str) -> Any:  # noqa: ANN401 - see kinds
        return rawbson.decode_value(self._document, self._span(name, kinds, expected))

    def _span(self, name: str, kinds: frozenset[int] | set[int], expected: str) -> rawbson.Span:
        span = self._fields.get(name.encode())
        if span is None:
            raise CommandError(MISSING_FIELD, f"BSON field '{self._path}.{name}' is missing but a required field")
        if span[0] not in kinds:
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"BSON field '{self._path}.{name}' is the wrong type '{type_name(span[0])}', expected type"
                f" '{expected}'",
            )
        return span
