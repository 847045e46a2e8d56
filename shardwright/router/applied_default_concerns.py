"""Adding the defaults of read and write concern to requests."""

from typing import Final

from shardwright.daemon.first_stage import first_stage_names
from shardwright.router.commands.command_registry import Command
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.supported_read_concerns import READ_CONCERN
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.involved_namespaces import writes
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, OBJECT, append, find, without
from shardwright.wire.request import Request
from shardwright.wire.write_concern import WRITE_CONCERN

_READ_WITH_DEFAULT: Final = frozenset({"aggregate", "count", "distinct", "find"})
_DEMAND_A_LEVEL: Final = frozenset(
    {b"$changeStream", b"$currentOp", b"$listCachedAndActiveUsers", b"$listLocalSessions", b"$planCacheStats"}
)
"""Stages that can only be read with one level of read concern, whatever the default is."""


def with_default_concerns(defaults: DefaultConcerns, entry: Command, request: Request) -> Request:
    """The request with the defaults for what it does not specify; the same object if there is nothing to add."""
    if AUTOCOMMIT in request.fields:
        return _with_defaults_in_transaction(defaults, entry, request)
    if entry.name in _READ_WITH_DEFAULT and defaults.read and _may_have_default(request):
        request = _with_default(request, READ_CONCERN, defaults.read)
    if entry.supports_write_concern and defaults.write and _may_write(entry, request):
        request = _with_default(request, WRITE_CONCERN, defaults.write)
    return request


def _with_defaults_in_transaction(defaults: DefaultConcerns, entry: Command, request: Request) -> Request:
    """As `with_default_concerns`: the first statement sets the read concern, and the end the write concern."""
    if START_TRANSACTION in request.fields:
        return _with_default(request, READ_CONCERN, defaults.read)
    return _with_default(request, WRITE_CONCERN, defaults.write) if entry.name in ENDING else request


def _with_default(request: Request, field: bytes, default: bytes) -> Request:
    """The request with the default, if there is one and the client has given none: an empty document is none either."""
    span, body = request.fields.get(field), request.body
    if not default or (span is not None and body[span[2] : span[3]] != EMPTY_DOCUMENT):
        return request
    return request.with_body(append(body if span is None else without(body, (field,)), default))


def _may_have_default(request: Request) -> bool:
    """Whether a default read concern applies to a read: not to an explanation, nor to stages that demand a level."""
    if request.get(b"explain"):
        return False
    names = first_stage_names(request)
    return not names or names[0] not in _DEMAND_A_LEVEL


def _may_write(entry: Command, request: Request) -> bool:
    """Whether a command that may have a write concern writes: an aggregation may only read."""
    if entry.name == "aggregate":
        pipeline = request.fields.get(b"pipeline")
        if pipeline is None or pipeline[0] != ARRAY or request.get(b"explain"):
            return False
        return writes(request.body, pipeline[2])
    if entry.name == "mapReduce":
        out = request.fields.get(b"out")
        return out is not None and (out[0] != OBJECT or find(request.body, b"inline", out[2]) is None)
    return True
