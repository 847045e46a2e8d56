"""The operators of MongoDB's filters, for the error that names the first unknown one.

Filters are validated by the shards they are sent to. A filter with an unknown operator does not fix the shard key, so
its statement may not be targetable at all: `unknown_operator` finds the real error.
"""

from typing import Final

from shardwright.sharding.targeting.filters import is_operator_object
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, Span

_LOGICAL: Final = frozenset({b"$and", b"$or", b"$nor"})

_TOP_LEVEL: Final = _LOGICAL | {
    b"$alwaysFalse",
    b"$alwaysTrue",
    b"$comment",
    b"$expr",
    b"$jsonSchema",
    b"$sampleRate",
    b"$text",
    b"$where",
}

_OF_FIELDS: Final = frozenset(
    b"$" + name
    for name in (
        b"all bitsAllClear bitsAllSet bitsAnyClear bitsAnySet elemMatch encryptedBetween eq exists geoIntersects "
        b"geoNear geoWithin gt gte in lt lte maxDistance minDistance mod ne near nearSphere nin not options regex size "
        b"type uniqueDocs within"
    ).split()
)

_NESTED: Final = frozenset({b"$not", b"$elemMatch"})
_REFERENCE: Final = frozenset({b"$ref", b"$id", b"$db"})
"""Fields of a DBRef, which is a value."""

_INTERNAL: Final = b"$_internal"


def unknown_operator(filter_document: bytes) -> CommandError | None:
    """Return MongoDB's error for the first unknown operator; None if all are known."""
    return _in_document(filter_document, 0)


def _in_document(document: bytes, start: int) -> CommandError | None:
    for name, span in rawbson.spans(document, start):
        found = _in_logical(document, name, span) if name.startswith(b"$") else _in_value(document, span)
        if found is not None:
            return found
    return None


def _in_logical(document: bytes, name: bytes, span: Span) -> CommandError | None:
    if name not in _TOP_LEVEL and not name.startswith(_INTERNAL):
        return CommandError(
            ErrorCode.BadValue,
            f"unknown top level operator: {name.decode(errors='replace')}. If you have a field name that starts with "
            "a '$' symbol, consider using $getField or $setField.",
        )
    if name in _LOGICAL and span[0] == ARRAY:
        for _, branch in rawbson.spans(document, span[2]):
            found = _in_document(document, branch[2]) if branch[0] == OBJECT else None
            if found is not None:
                return found
    return None


def _in_value(document: bytes, span: Span) -> CommandError | None:
    if not is_operator_object(document, span):
        return None
    for name, operand in rawbson.spans(document, span[2]):
        if name in _REFERENCE:
            return None
        if name not in _OF_FIELDS and not name.startswith(_INTERNAL):
            return CommandError(ErrorCode.BadValue, f"unknown operator: {name.decode(errors='replace')}")
        if name in _NESTED and operand[0] == OBJECT:
            is_filter = name == b"$elemMatch" and not is_operator_object(document, operand)
            found = _in_document(document, operand[2]) if is_filter else _in_value(document, operand)
            if found is not None:
                return found
    return None
