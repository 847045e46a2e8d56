"""Type-checked access to fields of catalog documents, with the errors NoSuchKey, TypeMismatch and InvalidUUID."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_UUID_BYTES: Final = 16


@contextmanager
def naming(document: str) -> Iterator[None]:
    """Name the document, for example ``config.version``, in the errors of the block."""
    try:
        yield
    except CommandError as error:
        raise CommandError(error.code, f"{document} is malformed: {error.message}") from error


def required(document: Mapping[str, Any], name: str, *kinds: type) -> Any:  # noqa: ANN401 - one of kinds
    """Return the value of a required field."""
    if name not in document:
        raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name}"')
    return _checked(document, name, kinds)


def documents(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the documents of an array; none if the field is absent."""
    found = optional(document, name, list) or []
    for each in found:
        if not isinstance(each, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch, f'"{name}" had the wrong type. Expected objects, found {type(each).__name__}'
            )
    return found


def optional(document: Mapping[str, Any], name: str, *kinds: type) -> Any:  # noqa: ANN401 - one of kinds, or None
    """Return the value of a field; None if it is absent."""
    return _checked(document, name, kinds) if name in document else None


def required_uuid(document: Mapping[str, Any], name: str) -> UUID:
    """Return the UUID in a required field."""
    value = required(document, name, Binary, UUID)
    if isinstance(value, UUID):
        return value
    if len(value) != _UUID_BYTES:
        raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
    return UUID(bytes=bytes(value))


def optional_uuid(document: Mapping[str, Any], name: str) -> UUID | None:
    """Return the UUID in a field; None if it is absent."""
    return required_uuid(document, name) if name in document else None


def _checked(document: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:  # noqa: ANN401 - one of kinds
    value = document[name]
    # In Python, but not in BSON, bool is an int.
    if not isinstance(value, kinds) or (isinstance(value, bool) and int in kinds and bool not in kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise CommandError(
            ErrorCode.TypeMismatch, f'"{name}" had the wrong type. Expected {expected}, found {type(value).__name__}'
        )
    return value
