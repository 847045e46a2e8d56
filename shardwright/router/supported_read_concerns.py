"""Which commands may have which read concern outside a transaction: nearly all only the default one, as on a mongod."""

from typing import Final

import bson

from shardwright.router.commands.command_registry import Command
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, STRING, TIMESTAMP, Span, decode_value, index
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name

READ_CONCERN: Final = b"readConcern"

CHECKED_BY_SHARDS: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""Commands with any level."""

_ANY: Final = frozenset({"getMore"})
"""It reads with the level of its cursor, whatever it says itself."""

_LEVELS: Final = ("local", "majority", "linearizable", "available", "snapshot")
_TIMES: Final = (b"afterClusterTime", b"atClusterTime")
_OTHER_FIELDS: Final = frozenset({b"afterOpTime", b"provenance"})


def check_read_concern(entry: Command, request: Request) -> None:
    """Refuse a read concern that the command cannot have; the request must have one.

    Raises:
        CommandError: FailedToParse, TypeMismatch; InvalidOptions, it has an unknown field, or a level that is not
            supported.
    """
    span, body = request.fields[READ_CONCERN], request.body
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.FailedToParse, "readConcern field should be an object")
    fields = index(body, span[2])
    for name, field in fields.items():
        _check_field(name, field)
    given = {name.decode(): decode_value(body, field) for name, field in fields.items()}
    level = given.get("level", "local")
    if level not in _LEVELS:
        levels = "'local', 'majority', 'linearizable', 'available', or 'snapshot'"
        raise CommandError(ErrorCode.FailedToParse, f"readConcern.level must be either {levels}")
    if level == "local" or entry.name in _ANY or (level == "available" and entry.name == "mapReduce"):
        return
    given.setdefault("provenance", "clientSupplied")
    text = document_text(bson.encode({"readConcern": given}))
    raise CommandError(
        ErrorCode.InvalidOptions,
        f"Command {entry.name} does not support {text} :: caused by :: read concern not supported",
    )


def _check_field(name: bytes, field: Span) -> None:
    expected = STRING if name == b"level" else TIMESTAMP if name in _TIMES else field[0]
    if field[0] != expected:
        wanted, found = type_name(expected), type_name(field[0])
        message = f'"{name.decode()}" had the wrong type. Expected {wanted}, found {found}'
        raise CommandError(ErrorCode.TypeMismatch, message)
    if name != b"level" and name not in _TIMES and name not in _OTHER_FIELDS:
        text = name.decode(errors="replace")
        raise CommandError(ErrorCode.InvalidOptions, f"Unrecognized option in readConcern: {text}")
