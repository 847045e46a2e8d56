"""Validation of a command's ``writeConcern``, as mongod 6.0.5 does it before it runs any command."""

from functools import lru_cache
from typing import Final, TypeGuard

from bson.decimal128 import Decimal128

from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, decode_document, is_string
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name, type_name_of

WRITE_CONCERN: Final = b"writeConcern"

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
        _check(document)
    else:
        _check_once(document)


def _check(document: bytes) -> None:
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


_check_once = lru_cache(_REMEMBERED_MAX)(_check)
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
