"""Arguments that several read commands have, checked as MongoDB's own parser does.

Only what the router itself needs is checked here. Everything else is passed on, and refused by a shard where need be.
"""

from decimal import Decimal
from typing import Final

from bson.decimal128 import Decimal128

from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import BOOL, DECIMAL128, DOUBLE, INT32, INT64, NULL, OBJECT, STRING, Span
from wire.request import Request
from wire.type_names import type_name

VALUE_TOO_SMALL: Final = 51024
UNKNOWN_FIELD: Final = 40415
MISSING_FIELD: Final = 40414

INT64_MAX: Final = (1 << 63) - 1
INT64_MIN: Final = -(1 << 63)

_NUMBERS: Final = frozenset({INT32, INT64, DOUBLE, DECIMAL128})


def wrong_type(path: str, kind: int, *expected: str) -> CommandError:
    """The error for an argument of a type that its command does not take.

    Args:
        path: ``<command struct>.<field>``.
        kind: the type that came.
        expected: the types that the command takes.
    """
    # Where the quote and the bracket close in the second form is MongoDB's.
    expecting = f"type '{expected[0]}'" if len(expected) == 1 else f"types '[{', '.join(expected)}']"
    return CommandError(
        ErrorCode.TypeMismatch, f"BSON field '{path}' is the wrong type '{type_name(kind)}', expected {expecting}"
    )


def missing_field(path: str) -> CommandError:
    """The error for an argument that has to be there."""
    return CommandError(MISSING_FIELD, f"BSON field '{path}' is missing but a required field")


def integer(request: Request, name: bytes, struct: str, *, minimum: int | None = 0) -> int | None:
    """An argument that takes any number and means an int64, None when it is absent or null.

    Args:
        request: the command.
        name: of the argument.
        struct: what MongoDB calls the arguments of this command in messages, for example ``FindCommandRequest``.
        minimum: the least value, None for no bound.

    Raises:
        CommandError: TypeMismatch, or 51024 for a value below the minimum.
    """
    span = request.fields.get(name)
    if span is None or span[0] == NULL:
        return None
    text = name.decode(errors="replace")
    if span[0] not in _NUMBERS:
        raise wrong_type(f"{struct}.{text}", span[0], "long", "int", "decimal", "double")
    value = clamp_int64(request.get(name))
    if minimum is not None and value < minimum:
        raise CommandError(VALUE_TOO_SMALL, f"BSON field '{text}' value must be >= {minimum}, actual value '{value}'")
    return value


def clamp_int64(value: int | float | Decimal128) -> int:
    """A number as MongoDB's ``safeNumberLong`` makes it an int64: cut to a whole number within the bounds, NaN to 0."""
    exact = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if exact.is_nan():
        return 0
    if exact.is_infinite() or not INT64_MIN <= exact <= INT64_MAX:
        return INT64_MIN if exact < 0 else INT64_MAX
    return int(exact)


def boolean(request: Request, name: bytes) -> bool:
    """An optional argument that is strictly a boolean; absent means false.

    Raises:
        CommandError: TypeMismatch.
    """
    span = request.fields.get(name)
    if span is None:
        return False
    if span[0] != BOOL:
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"Field '{name.decode(errors='replace')}' should be a boolean value, but found: {type_name(span[0])}",
        )
    return request.body[span[2]] != 0


def document(request: Request, name: bytes, struct: str) -> bytes | None:
    """A document argument as raw bytes, None when it is absent or null.

    Raises:
        CommandError: TypeMismatch.
    """
    span = request.fields.get(name)
    if span is None or span[0] == NULL:
        return None
    if span[0] != OBJECT:
        raise wrong_type(f"{struct}.{name.decode(errors='replace')}", span[0], "object")
    return request.raw(span)


def text(request: Request, name: bytes, struct: str) -> str:
    """A string argument that has to be there.

    Raises:
        CommandError: 40414 when it is missing, TypeMismatch.
    """
    span = request.fields.get(name)
    if span is None:
        raise missing_field(f"{struct}.{name.decode(errors='replace')}")
    if span[0] != STRING:
        raise wrong_type(f"{struct}.{name.decode(errors='replace')}", span[0], "string")
    return str(request.get(name))


def raw_elements(request: Request, names: tuple[bytes, ...]) -> bytes:
    """The given top-level elements of a command, those that are there, ready for `rawbson.append`."""
    body, fields = request.body, request.fields
    spans: list[Span] = [fields[name] for name in names if name in fields]
    return b"".join([body[start:end] for _, start, _, end in spans])
