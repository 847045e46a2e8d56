"""Reading the arguments of administrative commands, with the errors of MongoDB's own command parser."""

from collections.abc import Mapping
from typing import Any, Final

from sharding.namespace import Namespace
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import ARRAY, BOOL, OBJECT, STRING, decode_document
from wire.request import Request
from wire.type_names import type_name

MISSING_FIELD: Final = 40414
"""The bare number by which MongoDB's command parser refuses a missing field."""


def string(request: Request, name: bytes, *, default: str | None = None) -> str:
    """A string argument.

    Raises:
        CommandError: 40414, it is missing and has no default; TypeMismatch.
    """
    span = _typed(request, name, STRING, is_required=default is None)
    if span is None:
        assert default is not None
        return default
    return str(request.get(name))


def boolean(request: Request, name: bytes, *, default: bool = False) -> bool:
    """A boolean argument; numbers count as booleans, as MongoDB's ``safeBool`` has them.

    Raises:
        CommandError: TypeMismatch.
    """
    span = request.fields.get(name)
    if span is None:
        return default
    value = request.get(name)
    if span[0] != BOOL and not isinstance(value, int | float):
        raise _wrong_type(request, name, span[0], "bool")
    return bool(value)


def required_boolean(request: Request, name: bytes) -> bool:
    """A boolean argument; as `boolean`.

    Raises:
        CommandError: 40414, it is missing; TypeMismatch.
    """
    if name not in request.fields:
        raise _missing(request, name)
    return boolean(request, name)


def document(request: Request, name: bytes) -> dict[str, Any] | None:
    """A document argument, decoded; None when it is missing.

    Raises:
        CommandError: TypeMismatch.
    """
    raw = raw_document(request, name)
    return None if raw is None else decode_document(raw)


def raw_document(request: Request, name: bytes) -> bytes | None:
    """A document argument as it came; None when it is missing.

    Raises:
        CommandError: TypeMismatch.
    """
    span = _typed(request, name, OBJECT, is_required=False)
    return None if span is None else request.raw(span)


def required_document(request: Request, name: bytes) -> bytes:
    """A document argument as it came.

    Raises:
        CommandError: 40414, it is missing; TypeMismatch.
    """
    span = _typed(request, name, OBJECT, is_required=True)
    assert span is not None
    return request.raw(span)


def raw_documents(request: Request, name: bytes) -> list[bytes] | None:
    """An argument that is an array of documents; None when it is missing.

    Raises:
        CommandError: TypeMismatch.
    """
    return None if _typed(request, name, ARRAY, is_required=False) is None else request.documents(name)


def full_namespace(request: Request) -> Namespace:
    """The collection that an administrative command names in full, as ``{split: "db.collection"}`` does.

    Raises:
        CommandError: InvalidNamespace; TypeMismatch.
    """
    return Namespace.parse_collection(string(request, request.name.encode()))


def passed_on(request: Request, *names: bytes) -> Mapping[str, Any]:
    """Those of the named arguments that are there, decoded, for a command that takes the same ones."""
    return {name.decode(errors="replace"): request.get(name) for name in names if name in request.fields}


def _typed(request: Request, name: bytes, kind: int, *, is_required: bool) -> tuple[int, int, int, int] | None:
    span = request.fields.get(name)
    if span is None:
        if is_required:
            raise _missing(request, name)
        return None
    if span[0] != kind:
        raise _wrong_type(request, name, span[0], type_name(kind))
    return span


def _missing(request: Request, name: bytes) -> CommandError:
    return CommandError(MISSING_FIELD, f"BSON field '{request.name}.{name.decode()}' is missing but a required field")


def _wrong_type(request: Request, name: bytes, kind: int, expected: str) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{request.name}.{name.decode()}' is the wrong type '{type_name(kind)}', "
        f"expected type '{expected}'",
    )
