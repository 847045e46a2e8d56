"""Taking the arguments of internal commands, with the errors of MongoDB's command parser."""

import math
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from sharding.namespace import Namespace
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import OBJECT
from wire.request import Request
from wire.type_names import type_name

MISSING_FIELD = 40414
_UUID_BYTES: Final = 16


def namespace_argument(request: Request) -> Namespace:
    """The full namespace that is the value of the command itself.

    Raises:
        CommandError: TypeMismatch or InvalidNamespace.
    """
    return Namespace.parse_collection(string_argument(request, request.name.encode()))


def collection_argument(request: Request) -> Namespace:
    """The namespace of the collection in the request's database that is the value of the command itself.

    Raises:
        CommandError: TypeMismatch or InvalidNamespace.
    """
    return Namespace.parse_collection(f"{request.db}.{string_argument(request, request.name.encode())}")


def string_argument(request: Request, name: bytes) -> str:
    """A required string.

    Raises:
        CommandError: 40414 or TypeMismatch.
    """
    value = required_argument(request, name)
    if not isinstance(value, str):
        raise _wrong_type(request, name, "string")
    return value


def boolean_argument(request: Request, name: bytes, default: bool) -> bool:
    """An optional flag; numbers count as their truth, as in MongoDB's lenient booleans.

    Raises:
        CommandError: TypeMismatch.
    """
    value = request.get(name, default)
    if not isinstance(value, bool | int | float):
        raise _wrong_type(request, name, "bool")
    return bool(value)


def document_argument(request: Request, name: bytes) -> bytes:
    """A required document, raw.

    Raises:
        CommandError: 40414 or TypeMismatch.
    """
    span = request.fields.get(name)
    if span is None:
        raise _missing(request, name)
    if span[0] != OBJECT:
        raise _wrong_type(request, name, "object")
    return request.raw(span)


def required_argument(request: Request, name: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """A required value of whatever type, decoded.

    Raises:
        CommandError: 40414.
    """
    if name not in request.fields:
        raise _missing(request, name)
    return request.get(name)


def uuid_argument(request: Request, name: bytes) -> UUID:
    """A required UUID.

    Raises:
        CommandError: 40414, TypeMismatch or InvalidUUID.
    """
    value = required_argument(request, name)
    if not isinstance(value, Binary | bytes):
        raise _wrong_type(request, name, "binData")
    if len(value) != _UUID_BYTES:
        raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
    return UUID(bytes=bytes(value))


def migration_session_argument(request: Request) -> str:
    """The ``sessionId`` of a migration, which MongoDB takes without its command parser.

    Raises:
        CommandError: NoSuchKey or TypeMismatch.
    """
    span = request.fields.get(b"sessionId")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "sessionId"')
    value = request.get(b"sessionId")
    if not isinstance(value, str):
        raise CommandError(
            ErrorCode.TypeMismatch, f'"sessionId" had the wrong type. Expected string, found {type_name(span[0])}'
        )
    return value


def seconds_allowed(request: Request) -> float:
    """How long a request may take by its ``maxTimeMS``; for ever without one."""
    max_time_ms = request.get(b"maxTimeMS")
    return max_time_ms / 1000 if isinstance(max_time_ms, int | float) and max_time_ms > 0 else math.inf


def _missing(request: Request, name: bytes) -> CommandError:
    return CommandError(MISSING_FIELD, f"BSON field '{request.name}.{name.decode()}' is missing but a required field")


def _wrong_type(request: Request, name: bytes, expected: str) -> CommandError:
    found = type_name(request.fields[name][0])
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{request.name}.{name.decode()}' is the wrong type '{found}', expected type '{expected}'",
    )
