"""Read and write concerns of requests: which a command supports, and the cluster's defaults."""

from typing import Final

import bson

from shardwright.daemon.first_stage import first_stage_names
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import RouterCommand
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.involved_namespaces import writes
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    TIMESTAMP,
    Span,
    append,
    decode_value,
    find,
    index,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name
from shardwright.wire.write_concern import WRITE_CONCERN

READ_CONCERN: Final = b"readConcern"

CHECKED_BY_SHARDS: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""Commands that accept any level."""

_ANY: Final = frozenset({"getMore"})
"""Commands that ignore their own level: a ``getMore`` reads with the level of its cursor."""

_LEVELS: Final = ("local", "majority", "linearizable", "available", "snapshot")
_TIMES: Final = (b"afterClusterTime", b"atClusterTime")
_OTHER_FIELDS: Final = frozenset({b"afterOpTime", b"provenance"})


def check_read_concern(operation: Operation, entry: RouterCommand) -> None:
    """Refuse a read concern that the command does not support; the request must have one.

    Raises:
        CommandError: FailedToParse, TypeMismatch; InvalidOptions for an unknown field or an unsupported level.
    """
    request = operation.request
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


_READ_WITH_DEFAULT: Final = frozenset({"aggregate", "count", "distinct", "find"})
_DEMAND_A_LEVEL: Final = frozenset(
    {b"$changeStream", b"$currentOp", b"$listCachedAndActiveUsers", b"$listLocalSessions", b"$planCacheStats"}
)
"""Stages that support only one level, whatever the default is."""


def with_default_concerns(defaults: DefaultConcerns, entry: RouterCommand, request: Request) -> Request:
    """Add the default concerns that the request does not specify; returns the same object if there are none."""
    if AUTOCOMMIT in request.fields:
        return _with_defaults_in_transaction(defaults, entry, request)
    if entry.name in _READ_WITH_DEFAULT and defaults.read and _may_have_default(request):
        request = _with_default(request, READ_CONCERN, defaults.read)
    if entry.supports_write_concern and defaults.write and _may_write(entry, request):
        request = _with_default(request, WRITE_CONCERN, defaults.write)
    return request


def _with_defaults_in_transaction(defaults: DefaultConcerns, entry: RouterCommand, request: Request) -> Request:
    """Add the defaults in a transaction: the read concern to its first statement, the write concern to its end."""
    if START_TRANSACTION in request.fields:
        return _with_default(request, READ_CONCERN, defaults.read)
    return _with_default(request, WRITE_CONCERN, defaults.write) if entry.name in ENDING else request


def _with_default(request: Request, field: bytes, default: bytes) -> Request:
    """Add the default, if any, unless the client has specified the field; an empty document counts as unspecified."""
    span, body = request.fields.get(field), request.body
    if not default or (span is not None and body[span[2] : span[3]] != EMPTY_DOCUMENT):
        return request
    return request.with_body(append(body if span is None else without(body, (field,)), default))


def _may_have_default(request: Request) -> bool:
    """Whether a default read concern applies: not to explanations, nor to stages that support only one level."""
    if request.get(b"explain"):
        return False
    names = first_stage_names(request)
    return not names or names[0] not in _DEMAND_A_LEVEL


def _may_write(entry: RouterCommand, request: Request) -> bool:
    """Whether a command that supports a write concern writes; an aggregation may only read."""
    if entry.name == "aggregate":
        pipeline = request.fields.get(b"pipeline")
        if pipeline is None or pipeline[0] != ARRAY or request.get(b"explain"):
            return False
        return writes(request.body, pipeline[2])
    if entry.name == "mapReduce":
        out = request.fields.get(b"out")
        return out is not None and (out[0] != OBJECT or find(request.body, b"inline", out[2]) is None)
    return True
