"""The numbers by which the shards remember the statements of a retryable write."""

from typing import Final

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import wrong_type
from shardwright.wire.rawbson import ARRAY, INT32, NULL, decode_value, spans
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name

STATEMENT_ID_FIELDS: Final = frozenset({b"stmtId", b"stmtIds"})

_NO_ID: Final = -1
"""Stands for no id; to a mongod all other numbers are ids."""

_INVALID_NULL: Final = 10065
_IDS: Final = 1 << 32


def statement_ids(request: Request, count: int) -> list[int]:
    """The id of each statement: the client's own if it gave any, else its position in the batch.

    Args:
        request: a write command.
        count: how many statements it has.

    Raises:
        CommandError: TypeMismatch, InvalidOptions or InvalidLength, the client's ids are wrong, as a mongod says.
    """
    first, explicit = _first(request), _explicit(request)
    if explicit is None:
        return [_as_int32((first or 0) + position) for position in range(count)]
    if first is not None:
        raise CommandError(ErrorCode.InvalidOptions, "May not specify both stmtId and stmtIds in write command")
    if len(explicit) != count:
        raise CommandError(
            ErrorCode.InvalidLength,
            f"Number of statement ids must match the number of batch entries. Got {len(explicit)} statement ids "
            f"but {count} operations.",
        )
    return explicit


def check_distinct(request: Request) -> None:
    """Refuse a retryable insert of several documents under one id, which ends a mongod 6.0.5.

    Updates and deletes are no danger: the second one counts as a retry of the first. `_NO_ID` is not remembered.

    Raises:
        CommandError: InvalidOptions; TypeMismatch, the ids are none.
    """
    remembered = [each for each in _explicit(request) or () if each != _NO_ID]
    if len(set(remembered)) < len(remembered):
        raise CommandError(ErrorCode.InvalidOptions, "The statement ids of an insert must be different")


def _first(request: Request) -> int | None:
    span = request.fields.get(b"stmtId")
    if span is None or span[0] == NULL:
        return None
    first: int = decode_value(request.body, Arguments.of(request).span(b"stmtId", INT32))
    return first


def _explicit(request: Request) -> list[int] | None:
    span = request.fields.get(b"stmtIds")
    if span is None:
        return None
    if span[0] == NULL:
        raise CommandError(_INVALID_NULL, "invalid parameter: expected an object (stmtIds)")
    array = Arguments.of(request).span(b"stmtIds", ARRAY)
    ids: list[int] = []
    for name, each in spans(request.body, array[2]):
        if each[0] not in (INT32, NULL):
            raise wrong_type(f"{request.name}.stmtIds.{name.decode()}", each[0], type_name(INT32))
        if each[0] == INT32:  # like mongod's parser, which leaves out nulls
            ids.append(decode_value(request.body, each))
    return ids


def _as_int32(number: int) -> int:
    """A number after int32 overflow, as mongod counts."""
    return (number + _IDS // 2) % _IDS - _IDS // 2
