"""Validation of ``writeConcern`` and ``maxTimeMS``, which every command accepts, and of request parts forwarded unread.

A mongod checks the write concern before it runs any command. The errors are mongod 6.0.5's.

A mongod also validates each message on receipt and answers InvalidBSON. Our daemons read only as deep as they need to,
and leave the rest to the mongod. If a daemon fails to read some bytes, it validates the whole request to determine
whether the client sent malformed BSON.

Joins with two fields of one name are refused, because we could judge one and mongod execute the other. They even crash
a mongod 6.0.5. Pure.
"""

import re
from functools import lru_cache
from typing import Final, TypeGuard

from bson.decimal128 import Decimal128
from bson.errors import InvalidBSON

from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, duplicate_field
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import (
    OBJECT,
    InvalidBSONError,
    decode_document,
    is_string,
    spans,
    spans_at_any_depth,
    type_name,
    type_name_of,
)
from shardwright.wire.request import Request

WRITE_CONCERN: Final = b"writeConcern"

API_PARAMETERS: Final = (b"apiVersion", b"apiStrict", b"apiDeprecationErrors")
"""The arguments of the Stable API."""

_STRUCT: Final = "WriteConcernOptions"
_FIELDS: Final = frozenset(
    {b"w", b"j", b"fsync", b"wtimeout", b"provenance", b"getLastError", b"wElectionId", b"wOpTime"}
)
_PROVENANCES: Final = (
    "clientSupplied",
    "implicitDefault",
    "customDefault",
    "getLastErrorDefaults",
    "internalWriteDefault",
)
_MEMBERS_MAX: Final = 50
_INT32_MAX: Final = 2**31 - 1
_REMEMBERED_BYTES_MAX: Final = 64
_REMEMBERED_MAX: Final = 64


def check_write_concern(request: Request) -> None:
    """Check the ``writeConcern`` of a request, which must have one.

    Raises TypeMismatch, FailedToParse, BadValue or 40415.
    """
    kind, _, start, end = request.fields[WRITE_CONCERN]
    if kind != OBJECT:
        raise CommandError(
            ErrorCode.TypeMismatch, f'"writeConcern" had the wrong type. Expected object, found {type_name(kind)}'
        )
    document = request.body[start:end]
    if len(document) > _REMEMBERED_BYTES_MAX:
        _check_write_concern_fields(document)
    else:
        _check_once(document)


def _check_write_concern_fields(document: bytes) -> None:
    arguments = Arguments(document, _STRUCT)
    arguments.refuse_unknown(_FIELDS)
    is_journaled, is_synced = arguments.boolean(b"j"), arguments.boolean(b"fsync")
    given = decode_document(document)
    if "w" in given:
        _check_members(given["w"])
    if given.get("provenance", _PROVENANCES[0]) not in _PROVENANCES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{given['provenance']}' for field '{_STRUCT}.provenance' is not a valid value.",
        )
    if is_journaled and is_synced:
        raise CommandError(ErrorCode.FailedToParse, "fsync and j options cannot be used together")
    if _is_number(given.get("wtimeout")) and clamp_int64(given["wtimeout"]) > _INT32_MAX:
        raise CommandError(ErrorCode.FailedToParse, "wtimeout must be a 32-bit integer")


_check_once = lru_cache(_REMEMBERED_MAX)(_check_write_concern_fields)
"""Cached check: applications use few write concerns, and one for each transaction. Errors are not cached."""


def _check_members(w: object) -> None:
    """Check the members that must acknowledge a write; raise FailedToParse."""
    if _is_number(w):
        number = clamp_int64(w)
        if not 0 <= number <= _MEMBERS_MAX:
            raise CommandError(
                ErrorCode.FailedToParse,
                f"w has to be a non-negative number and not greater than {_MEMBERS_MAX}; found: {number}",
            )
    elif isinstance(w, dict):
        if not w:
            raise CommandError(ErrorCode.FailedToParse, "tagged write concern requires tags")
    elif w is not None and not is_string(w):
        raise CommandError(
            ErrorCode.FailedToParse, f"w has to be a number, string, or object; found: {type_name_of(w)}"
        )


def _is_number(value: object) -> TypeGuard[int | float | Decimal128]:
    return isinstance(value, int | float | Decimal128) and not isinstance(value, bool)


MAX_TIME_MS: Final = b"maxTimeMS"

_LIMIT: Final = (1 << 31) - 1


def max_time_ms(request: Request) -> int:
    """Return the value of ``maxTimeMS``, 0 for no limit.

    A decimal is rounded, whereas a double must be integral. ``aggregate`` parses the field in its own parser first,
    with other errors.

    Raises:
        CommandError: BadValue; for ``aggregate`` also TypeMismatch and 51024.
    """
    if MAX_TIME_MS not in request.fields:
        return 0
    if request.name == "aggregate":
        Arguments.of(request, "aggregate").maybe_integer(MAX_TIME_MS)
    value = request.get(MAX_TIME_MS)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(ErrorCode.BadValue, "maxTimeMS must be a number")
    milliseconds = clamp_int64(value)
    if not 0 <= milliseconds <= _LIMIT:
        raise CommandError(ErrorCode.BadValue, f"{milliseconds} value for maxTimeMS is out of range")
    if isinstance(value, float) and not value.is_integer():
        raise CommandError(ErrorCode.BadValue, "maxTimeMS has non-integral value")
    return milliseconds


def error_of_request(failure: Exception, request: Request) -> CommandError | None:
    """Return the error to send for a command whose handler raised ``failure``; None for an internal error."""
    if isinstance(failure, CommandError):
        return failure
    if not isinstance(failure, InvalidBSONError | InvalidBSON | RecursionError):
        return None
    try:
        _check(request.body, 0, NESTING_LEVELS_MAX)
        for sequence in request.message.sequences:
            for document in sequence.documents:
                _check(document, 0, NESTING_LEVELS_MAX)
    except InvalidBSONError as error:
        return CommandError(ErrorCode.InvalidBSON, f"{error} in object with unknown _id")
    except CommandError as error:
        return error
    return None


def _check(document: bytes, start: int, levels: int) -> None:
    """Validate a document at all levels; raise InvalidBSONError, or Overflow if it is nested too deep."""
    if not levels:
        raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")
    for _, (kind, _, value_start, value_end) in rawbson.spans(document, start):
        if kind in (rawbson.OBJECT, rawbson.ARRAY):
            _check(document, value_start, levels - 1)
        elif kind in (rawbson.STRING, rawbson.CODE, rawbson.SYMBOL):
            if document[value_end - 1]:
                raise InvalidBSONError("Not null terminated string")
        elif kind == rawbson.BOOL:
            if document[value_start] > 1:
                raise InvalidBSONError("BSON bool is neither false nor true")
        elif kind == rawbson.CODE_WITH_SCOPE:
            _check_code_with_scope(document, value_start, value_end, levels)


def _check_code_with_scope(document: bytes, start: int, end: int, levels: int) -> None:
    scope = start + 8 + int.from_bytes(document[start + 4 : start + 8], "little")
    if not start + 8 < scope <= end - rawbson.DOCUMENT_BYTES_MIN:
        raise InvalidBSONError("code with scope whose code reaches past its end")
    if document[scope - 1] or scope + rawbson.document_length(document, scope) != end:
        raise InvalidBSONError("code with scope whose parts do not fill it")
    _check(document, scope, levels - 1)


_JOINS: Final = frozenset({b"$graphLookup", b"$lookup"})
_ANY_JOIN: Final = re.compile(rb"\$(?:graphLookup|lookup)\0")


def refuse_repeated_join_fields(document: bytes) -> None:
    """Raise 40413 for joins with two fields of one name, at any depth of a document."""
    if _ANY_JOIN.search(document) is None:
        return
    for name, (kind, _, value_start, _) in spans_at_any_depth(document):
        if kind == OBJECT and name in _JOINS:
            refuse_repeated_fields(document, value_start, name.decode())


def refuse_repeated_fields(document: bytes, start: int, path: str) -> None:
    """Raise 40413 for two fields of one name in the document at ``start``; ``path`` is its name in the message."""
    seen: set[bytes] = set()
    for name, _ in spans(document, start):
        if name in seen:
            raise duplicate_field(f"{path}.{name.decode(errors='replace')}")
        seen.add(name)
