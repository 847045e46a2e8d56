"""BSON types of the specification (https://bsonspec.org/spec.html), and spans of elements."""

from struct import Struct
from typing import Final, TypeAlias

Span: TypeAlias = tuple[int, int, int, int]
"""``(type, element_start, value_start, value_end)``."""

INT32_STRUCT: Final = Struct("<i")

DOUBLE: Final = 0x01
STRING: Final = 0x02
OBJECT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
UNDEFINED: Final = 0x06
OBJECT_ID: Final = 0x07
BOOL: Final = 0x08
DATE: Final = 0x09
NULL: Final = 0x0A
REGEX: Final = 0x0B
DB_POINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
TIMESTAMP: Final = 0x11
INT64: Final = 0x12
DECIMAL128: Final = 0x13
MIN_KEY: Final = 0xFF
MAX_KEY: Final = 0x7F

EMPTY_DOCUMENT: Final = b"\x05\x00\x00\x00\x00"

DOCUMENT_BYTES_MIN: Final = 5


class InvalidBSONError(ValueError):
    """The bytes are not a well-formed BSON document."""
