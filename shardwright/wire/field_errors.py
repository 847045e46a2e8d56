"""The errors of MongoDB's command parser (IDL) about one field, with its numbers and its words."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.type_names import type_name

DUPLICATE_FIELD: Final = 40413
MISSING_FIELD: Final = 40414
UNKNOWN_FIELD: Final = 40415
VALUE_TOO_SMALL: Final = 51024


def missing_field(path: str) -> CommandError:
    """The error for a field that has to be there.

    Args:
        path: ``<struct>.<field>``, where the struct is MongoDB's name for the arguments, mostly the command's.
    """
    return CommandError(MISSING_FIELD, f"BSON field '{path}' is missing but a required field")


def unknown_field(path: str) -> CommandError:
    """The error for a field that the command does not have."""
    return CommandError(UNKNOWN_FIELD, f"BSON field '{path}' is an unknown field.")


def duplicate_field(path: str) -> CommandError:
    """The error for a field that stands there twice."""
    return CommandError(DUPLICATE_FIELD, f"BSON field '{path}' is a duplicate field")


def wrong_type(path: str, kind: int, *expected: str) -> CommandError:
    """The error for a field of a type that the command does not take.

    Args:
        path: ``<struct>.<field>``.
        kind: the type that came.
        expected: the names of the types that the command takes.
    """
    # Where the quote and the bracket close in the second form is MongoDB's.
    expecting = f"type '{expected[0]}'" if len(expected) == 1 else f"types '[{', '.join(expected)}']"
    return CommandError(
        ErrorCode.TypeMismatch, f"BSON field '{path}' is the wrong type '{type_name(kind)}', expected {expecting}"
    )


def value_too_small(name: str, value: int, minimum: int) -> CommandError:
    """The error for a number below its least value; MongoDB names the field without its struct here."""
    return CommandError(VALUE_TOO_SMALL, f"BSON field '{name}' value must be >= {minimum}, actual value '{value}'")
