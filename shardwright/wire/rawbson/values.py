"""Decoding documents and values, including those that pymongo's codec refuses and a mongod accepts.

A dict keeps the last of several fields of one name. A mongod may act on the first, or on all, so code that judges a
document has to see them all: `WholeDocument`.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, TypeGuard

import bson
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError, InvalidBSON
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from shardwright.wire.rawbson.building import encode_document, wrap_value
from shardwright.wire.rawbson.spans import (
    ARRAY,
    BINARY,
    BOOL,
    DOUBLE,
    INT32,
    INT32_STRUCT,
    INT64,
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    spans,
)

_unpack_int32 = INT32_STRUCT.unpack_from
_unpack_int64 = Struct("<q").unpack_from
_unpack_double = Struct("<d").unpack_from

VALUE_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict, tz_aware=False, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Codec of the daemons: UUIDs stay ``Binary``, dates outside Python's range are kept."""

_ALWAYS_EXACT: Final = frozenset({INT32, INT64, OBJECT})
"""Types whose values always re-encode exactly, with nested documents possibly as `VerbatimDocument`."""

_LENIENT_CODEC: Final = VALUE_CODEC.with_options(unicode_decode_error_handler="replace")


class VerbatimDocument(dict[str, Any]):
    """A nested document that a dict cannot represent exactly; it re-encodes to the same bytes.

    Args:
        fields: its fields, decoded as far as possible.
        document: the bytes of an enclosing document, which contain it from ``start`` to ``end``.
    """

    _type_marker = RawBSONDocument._type_marker

    def __init__(self, fields: dict[str, Any], document: bytes, start: int, end: int) -> None:
        super().__init__(fields)
        self._document = document
        self._start = start
        self._end = end

    @property
    def raw(self) -> bytes:
        """The bytes, which pymongo's encoder copies verbatim, as for a `RawBSONDocument`.

        They are copied only here, because such documents may be nested deeply, each containing all inner ones.
        """
        return self._document[self._start : self._end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerbatimDocument) and self.raw == other.raw

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as for a dict


def decode_document(document: bytes) -> dict[str, Any]:
    """Decode a document with `VALUE_CODEC`, even if pymongo refuses it and a mongod would accept it.

    A mongod checks neither that text is UTF-8 nor the inner length of binary data of the old subtype 2. Such text gets
    replacement characters, and such data is returned whole. Nested documents with either become `VerbatimDocument`.
    """
    try:
        return bson.decode(document, codec_options=VALUE_CODEC)
    except InvalidBSON:
        fields: dict[str, Any]
        fields, _ = decode_leniently(document, (OBJECT, 0, 0, len(document)))
        return dict(fields)


def decode_leniently(
    document: bytes,
    span: Span,
    codec: "CodecOptions[Any]" = VALUE_CODEC,
    inexact: Callable[[dict[str, Any], bytes, int, int], dict[str, Any]] = VerbatimDocument,
    whole_bytes_max: int | None = None,
) -> tuple[Any, bool]:
    """Decode a value that pymongo has refused.

    Parts are decoded by pymongo where possible, which is faster. Parts longer than half of a refused one are not tried:
    otherwise each document would be read once for every enclosing document.

    Args:
        inexact: creates the value of a nested document that pymongo partly refuses. Its arguments are the fields, the
            bytes around it, and its bounds there.
        whole_bytes_max: the longest part that is tried whole.

    Returns:
        The value, and whether pymongo would not have refused it after all.
    """
    kind, _, start, end = span
    if kind not in (OBJECT, ARRAY):
        return _decode_scalar_leniently(kind, document[start:end]), False
    bytes_max = (end - start) // 2 if whole_bytes_max is None else whole_bytes_max
    fields: dict[str, Any] = codec.document_class()
    items: list[Any] = []
    is_exact = True
    for name, each in spans(document, start):
        size = each[3] - each[2]
        try:
            if size > bytes_max and each[0] in (OBJECT, ARRAY):
                value, is_valid = decode_leniently(document, each, codec, inexact, bytes_max)
            else:
                value = bson.decode(wrap_value(each[0], document[each[2] : each[3]]), codec_options=codec)[""]
                is_valid = True
        except InvalidBSON:
            value, is_valid = decode_leniently(document, each, codec, inexact)
        text = name.decode(errors="replace")
        is_exact = is_exact and is_valid and text.encode() == name
        if kind == ARRAY:
            items.append(value)
        else:
            fields[text] = value
    if kind == ARRAY:
        return items, is_exact
    return fields if is_exact else inexact(fields, document, start, end), is_exact


def decode_exactly(document: bytes) -> dict[str, Any]:
    """Decode like `decode_document`, so that any value of the result re-encodes to the same bytes.

    Nested documents that a dict cannot represent, such as those with two fields of one name, become `VerbatimDocument`.
    This costs an encoding of the document, so it is for documents that are stored or forwarded.
    """
    decoded = decode_document(document)
    return decoded if _represents(decoded, document) else _decode_fields_exactly(document, 0)


def decode_value(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """Decode one element like `decode_document`, but faster for the types of most arguments."""
    kind, _, value_start, value_end = span
    if kind == INT32:
        return _unpack_int32(document, value_start)[0]
    if kind == STRING:
        return document[value_start + 4 : value_end - 1].decode(errors="replace")
    if kind == DOUBLE:
        return _unpack_double(document, value_start)[0]
    if kind == BOOL and document[value_start] <= 1:
        return document[value_start] == 1
    if kind == INT64:
        return Int64(_unpack_int64(document, value_start)[0])
    value = document[value_start:value_end]
    try:
        if kind == OBJECT:
            return bson.decode(value, codec_options=VALUE_CODEC)
        return bson.decode(wrap_value(kind, value), codec_options=VALUE_CODEC)[""]
    except InvalidBSON:
        decoded, _ = decode_leniently(document, span)
        return decoded


def is_string(value: object) -> TypeGuard[str]:
    """Whether a decoded value is a BSON string.

    ``bson.Code`` (JavaScript) is a subclass of ``str``, but not a string to MongoDB, and it has no hash.
    """
    return type(value) is str


def _decode_fields_exactly(document: bytes, start: int) -> dict[str, Any]:
    return {
        name.decode(errors="replace"): _decode_value_exactly(document, span) for name, span in spans(document, start)
    }


def _decode_value_exactly(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a BSON value can be anything
    kind, _, start, end = span
    if kind == ARRAY:
        return [_decode_value_exactly(document, each) for _, each in spans(document, start)]
    if kind != OBJECT:
        return decode_value(document, span)
    if _is_representable(document, start):
        return _decode_fields_exactly(document, start)
    return VerbatimDocument(decode_document(document[start:end]), document, start, end)


def _is_representable(document: bytes, start: int) -> bool:
    """Whether a dict can represent a nested document, provided that its own nested documents are represented.

    Each value is checked only for its innermost document. Checking it for the enclosing ones too could be slow.
    """
    names: set[bytes] = set()
    for name, span in spans(document, start):
        if name in names or name.decode(errors="replace").encode() != name or not _is_exact(document, span):
            return False
        names.add(name)
    return True


def _is_exact(document: bytes, span: Span) -> bool:
    kind, _, start, end = span
    if kind in _ALWAYS_EXACT:
        return True
    if kind == ARRAY:
        items = enumerate(spans(document, start))
        return all(name == b"%d" % position and _is_exact(document, each) for position, (name, each) in items)
    return _represents({"": decode_value(document, span)}, wrap_value(kind, document[start:end]))


def _represents(decoded: dict[str, Any], document: bytes) -> bool:
    try:
        return encode_document(decoded) == document
    except (BSONError, OverflowError, ValueError):
        return False


def _decode_scalar_leniently(kind: int, value: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
    if kind == BINARY:
        return Binary(value[5:], value[4])
    try:
        return bson.decode(wrap_value(kind, value), codec_options=_LENIENT_CODEC)[""]
    except InvalidBSON as error:
        raise InvalidBSONError(str(error)) from error


class WholeDocument(dict[str, Any]):
    """A decoded document; ``repeated`` keeps the fields hidden by a later one of the same name."""

    __slots__ = ("repeated",)

    def __init__(self) -> None:
        super().__init__()
        self.repeated: list[tuple[str, Any]] = []

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - a BSON value can be anything
        if name in self:
            self.repeated.append((name, self[name]))
        super().__setitem__(name, value)

    def pairs(self) -> Iterator[tuple[str, Any]]:
        """Yield all fields."""
        yield from self.repeated
        yield from self.items()


_CODEC: Final[CodecOptions[Any]] = VALUE_CODEC.with_options(document_class=WholeDocument)


def decode_whole(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """Decode one element like `decode_value`, but with `WholeDocument` for its documents."""
    kind, _, value_start, value_end = span
    if kind not in (OBJECT, ARRAY):
        return decode_value(document, span)
    try:
        return bson.decode(wrap_value(kind, document[value_start:value_end]), codec_options=_CODEC)[""]
    except InvalidBSON:
        decoded, _ = decode_leniently(document, span, _CODEC, lambda fields, *_: fields)
        return decoded
