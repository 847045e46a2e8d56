"""The errors of MongoDB's command parser (IDL) about a single field, with its codes and messages."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.type_names import type_name

DUPLICATE_FIELD: Final = 40413
MISSING_FIELD: Final = 40414
UNKNOWN_FIELD: Final = 40415
VALUE_TOO_SMALL: Final = 51024


def missing_field(path: str) -> CommandError:
    """The error for a required field that is missing.

    Args:
        path: ``<struct>.<field>``, where the struct is MongoDB's name for the arguments, usually the command's name.
    """
    return CommandError(MISSING_FIELD, f"BSON field '{path}' is missing but a required field")


def unknown_field(path: str) -> CommandError:
    """The error for a field that the command does not have."""
    return CommandError(UNKNOWN_FIELD, f"BSON field '{path}' is an unknown field.")


def duplicate_field(path: str) -> CommandError:
    """The error for a field that occurs twice."""
    return CommandError(DUPLICATE_FIELD, f"BSON field '{path}' is a duplicate field")


def not_allowed_strictly(path: str) -> CommandError:
    """The error for a field that is in no version of the Stable API, with ``apiStrict``."""
    return CommandError(ErrorCode.APIStrictError, f"BSON field '{path}' is not allowed with apiStrict:true.")


def wrong_type(path: str, kind: int, *expected: str) -> CommandError:
    """The error for a field of a wrong type.

    Args:
        path: ``<struct>.<field>``.
        kind: the actual type.
        expected: the names of the accepted types.
    """
    # The quote and bracket are misplaced in the second form, as in MongoDB's message.
    expecting = f"type '{expected[0]}'" if len(expected) == 1 else f"types '[{', '.join(expected)}']"
    return CommandError(
        ErrorCode.TypeMismatch, f"BSON field '{path}' is the wrong type '{type_name(kind)}', expected {expecting}"
    )


def value_too_small(name: str, value: int, minimum: int) -> CommandError:
    """The error for a number below its minimum; here MongoDB names the field without its struct."""
    return CommandError(VALUE_TOO_SMALL, f"BSON field '{name}' value must be >= {minimum}, actual value '{value}'")
