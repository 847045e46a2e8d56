"""Fields of catalog documents and command replies, checked for presence and type."""

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from bson.binary import UUID_SUBTYPE, Binary

from wire.error_codes import ErrorCode
from wire.errors import CommandError

T = TypeVar("T")


def required(document: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A field that must be there.

    Raises:
        CommandError: NoSuchKey, it is missing; TypeMismatch, it is something else.
    """
    if name not in document:
        raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name}"')
    return _checked(name, document[name], kind)


def optional(document: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """A field that may be missing, then None.

    Raises:
        CommandError: TypeMismatch, it is something else.
    """
    return _checked(name, document[name], kind) if name in document else None


def required_uuid(document: Mapping[str, Any], name: str) -> UUID:
    """A field that holds a UUID, decoded as one or still a binary of subtype 4.

    Raises:
        CommandError: NoSuchKey, it is missing; TypeMismatch, it is something else.
    """
    value = required(document, name, object)
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE and len(value) == 16:
        return UUID(bytes=bytes(value))
    return _checked(name, value, UUID)


def _checked(name: str, value: object, kind: type[T]) -> T:
    # bool is an int in Python, but not in BSON.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'"{name}" had the wrong type. Expected {kind.__name__}, found {type(value).__name__}',
        )
    return value
