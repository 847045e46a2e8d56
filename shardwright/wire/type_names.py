"""MongoDB's names of BSON types in error messages and in ``$type``."""

from typing import Any, Final

import bson

from shardwright.wire import rawbson

_TYPE_NAMES: Final = {
    rawbson.DOUBLE: "double",
    rawbson.STRING: "string",
    rawbson.OBJECT: "object",
    rawbson.ARRAY: "array",
    rawbson.BINARY: "binData",
    rawbson.UNDEFINED: "undefined",
    rawbson.OBJECT_ID: "objectId",
    rawbson.BOOL: "bool",
    rawbson.DATE: "date",
    rawbson.NULL: "null",
    rawbson.REGEX: "regex",
    rawbson.DB_POINTER: "dbPointer",
    rawbson.CODE: "javascript",
    rawbson.SYMBOL: "symbol",
    rawbson.CODE_WITH_SCOPE: "javascriptWithScope",
    rawbson.INT32: "int",
    rawbson.TIMESTAMP: "timestamp",
    rawbson.INT64: "long",
    rawbson.DECIMAL128: "decimal",
    rawbson.MIN_KEY: "minKey",
    rawbson.MAX_KEY: "maxKey",
}

_BINARY_TYPE_NAMES: Final = {
    0: "general",
    1: "function",
    2: "byte(deprecated)",
    3: "UUID(deprecated)",
    4: "UUID",
    5: "MD5",
    6: "encrypt",
}


def binary_type_name(subtype: int) -> str:
    """Return MongoDB's name of a subtype of binary data."""
    return _BINARY_TYPE_NAMES.get(subtype, "unknown")


def type_name(kind: int) -> str:
    """Return MongoDB's name of a BSON type, given its type byte, which must be valid."""
    return _TYPE_NAMES[kind]


def type_name_of(value: Any) -> str:  # noqa: ANN401 - a BSON value can be anything
    """Return MongoDB's name of the type of a decoded value."""
    return type_name(type_of(value))


def type_of(value: Any) -> int:  # noqa: ANN401 - as above
    """Return the type byte of a decoded value."""
    return bson.encode({"": value})[4]
