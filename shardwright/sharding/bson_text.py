"""BSON as text, the way MongoDB writes it in error messages: ``{ a: 1, b: "x", c: MinKey }``."""

from collections.abc import Callable
from struct import Struct
from typing import Final
from uuid import UUID

from bson.decimal128 import Decimal128

from shardwright.wire import rawbson
from shardwright.wire.rawbson import STRING, Span
from shardwright.wire.request import MASK, Request, secret_fields

_UUID_SUBTYPE: Final = 4
_UUID_BYTES: Final = 16

_unpack_int32 = Struct("<i").unpack_from
_unpack_int64 = Struct("<q").unpack_from
_unpack_double = Struct("<d").unpack_from
_unpack_timestamp = Struct("<II").unpack_from


def document_text(document: bytes, start: int = 0) -> str:
    """Format a document for human readers; the text cannot be parsed."""
    fields = [f"{_string(name)}: {value_text(document, span)}" for name, span in rawbson.spans(document, start)]
    return f"{{ {', '.join(fields)} }}" if fields else "{}"


def value_text(document: bytes, span: Span) -> str:
    """Format one value."""
    return _WRITERS[span[0]](document, span[2], span[3])


def _string(text: bytes) -> str:
    return text.decode(errors="replace")


def _array(document: bytes, start: int, _end: int) -> str:
    values = [value_text(document, span) for _, span in rawbson.spans(document, start)]
    return f"[ {', '.join(values)} ]" if values else "[]"


def _object(document: bytes, start: int, _end: int) -> str:
    return document_text(document, start)


def _double(document: bytes, start: int, _end: int) -> str:
    text = f"{_unpack_double(document, start)[0]:.16g}"
    return text if "." in text else f"{text}.0"  # mongod writes "1e+20.0" and "nan.0" as well


def _quoted(document: bytes, start: int, end: int) -> str:
    return f'"{_string(document[start + 4 : end - 1])}"'


def _binary(document: bytes, start: int, end: int) -> str:
    if document[start + 4] == _UUID_SUBTYPE and end - start == _UUID_BYTES + 5:
        return f'UUID("{UUID(bytes=document[start + 5 : end])}")'
    return f"BinData({document[start + 4]}, {document[start + 5 : end].hex().upper()})"


def _regex(document: bytes, start: int, end: int) -> str:
    pattern, options, _ = document[start:end].split(b"\0")
    return f"/{_string(pattern)}/{_string(options)}"


def _timestamp(document: bytes, start: int, _end: int) -> str:
    increment, seconds = _unpack_timestamp(document, start)
    return f"Timestamp({seconds}, {increment})"


def _db_pointer(document: bytes, start: int, end: int) -> str:
    return f'DBRef("{_string(document[start + 4 : end - 13])}",{document[end - 12 : end].hex()})'


def _code_with_scope(document: bytes, start: int, _end: int) -> str:
    code_end = start + 8 + int(_unpack_int32(document, start + 4)[0])
    return f"CodeWScope( {_string(document[start + 8 : code_end - 1])}, {document_text(document, code_end)})"


_WRITERS: Final[dict[int, Callable[[bytes, int, int], str]]] = {
    rawbson.DOUBLE: _double,
    rawbson.STRING: _quoted,
    rawbson.SYMBOL: _quoted,
    rawbson.OBJECT: _object,
    rawbson.ARRAY: _array,
    rawbson.BINARY: _binary,
    rawbson.UNDEFINED: lambda *_: "undefined",
    rawbson.OBJECT_ID: lambda document, start, end: f"ObjectId('{document[start:end].hex()}')",
    rawbson.BOOL: lambda document, start, _: "true" if document[start] else "false",
    rawbson.DATE: lambda document, start, _: f"new Date({_unpack_int64(document, start)[0]})",
    rawbson.NULL: lambda *_: "null",
    rawbson.REGEX: _regex,
    rawbson.DB_POINTER: _db_pointer,
    rawbson.CODE: lambda document, start, end: _string(document[start + 4 : end - 1]),
    rawbson.CODE_WITH_SCOPE: _code_with_scope,
    rawbson.INT32: lambda document, start, _: str(_unpack_int32(document, start)[0]),
    rawbson.TIMESTAMP: _timestamp,
    rawbson.INT64: lambda document, start, _: str(_unpack_int64(document, start)[0]),
    rawbson.DECIMAL128: lambda document, start, end: str(Decimal128.from_bid(document[start:end])),
    rawbson.MIN_KEY: lambda *_: "MinKey",
    rawbson.MAX_KEY: lambda *_: "MaxKey",
}


_STRING_CHARACTERS_MAX: Final = 160
_SHOWN_CHARACTERS: Final = 150


def command_text(request: Request) -> str:
    """Format the fields of a command, without its document sequences."""
    fields = [
        f"{name.decode(errors='replace')}: {_shown(request, name, span)}" for name, span in request.fields.items()
    ]
    return f"{{ {', '.join(fields)} }}"


def _shown(request: Request, name: bytes, span: Span) -> str:
    if name in secret_fields(request):
        return f'"{MASK}"'
    text = value_text(request.body, span)
    if span[0] == STRING and len(text) > _STRING_CHARACTERS_MAX:
        return f'{text[: _SHOWN_CHARACTERS + 1]}..."'
    return text
