"""Generic arguments of requests: read and write concern, the Stable API, and the session.

**Concerns.** A command supports some of them, and the cluster has defaults.

**The Stable API**: ``apiVersion``, ``apiStrict`` and ``apiDeprecationErrors``. The router checks the command. It passes
the arguments on to the shards' mongods, which check the contents of commands with ``apiStrict``.

**Sessions.** The router checks the session and transaction fields of each command, and then records its session.
"""

from time import time
from typing import Final

import bson

from shardwright.daemon.command_table import first_stage_names
from shardwright.daemon.users import refuse_reserved_session
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.operations.operation import Operation, RouterCommand
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.logical_sessions import SessionId
from shardwright.sharding.pipelines.pipeline import writes
from shardwright.sharding.transaction_protocol import (
    AUTOCOMMIT,
    LSID,
    START_TRANSACTION,
    TXN_NUMBER,
    WITHOUT_USER,
    check_transaction_fields,
)
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, wrong_type
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    NULL,
    OBJECT,
    STRING,
    TIMESTAMP,
    Span,
    append,
    decode_value,
    find,
    index,
    type_name,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import API_PARAMETERS, WRITE_CONCERN
from shardwright.wire.transport.server import LOCAL_PEER

READ_CONCERN: Final = b"readConcern"

CHECKED_BY_SHARDS: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""Commands that accept any level."""

_ANY: Final = frozenset({"getMore"})
"""Commands that ignore their own level: a ``getMore`` reads with the level of its cursor."""

_LEVELS: Final = ("local", "majority", "linearizable", "available", "snapshot")
_TIMES: Final = (b"afterClusterTime", b"atClusterTime")
_OTHER_FIELDS: Final = frozenset({b"afterOpTime", b"provenance"})

_VERSION_REQUIRED: Final = 498870
_NO_VERSION: Final = 4886600
_UNRELEASED: Final = "2"
"""A version in MongoDB's code that is never accepted."""

_NOT_A_USE: Final = WITHOUT_USER | {
    *("endSessions", "killAllSessions", "killAllSessionsByPattern", "killSessions", "refreshSessions"),
}
"""Commands that do not use the session they are sent with: they need no user, or are about sessions."""


def check_read_concern_type(operation: Operation, entry: RouterCommand) -> None:
    """Refuse a read concern that is not a document; the request must have one.

    Raises:
        CommandError: FailedToParse; TypeMismatch for an aggregation, where mongod's parser meets it first.
    """
    kind = operation.request.fields[READ_CONCERN][0]
    if kind != OBJECT:
        if entry.name == "aggregate" and kind != NULL:
            raise wrong_type("aggregate.readConcern", kind, "object")
        raise CommandError(ErrorCode.FailedToParse, "readConcern field should be an object")


def check_read_concern(operation: Operation, entry: RouterCommand) -> None:
    """Refuse a read concern that the command does not support; the request must have a document.

    Raises:
        CommandError: FailedToParse, TypeMismatch; InvalidOptions for an unknown field or an unsupported level.
    """
    request = operation.request
    span, body = request.fields[READ_CONCERN], request.body
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


def require_api_version(operation: Operation, _: RouterCommand) -> None:
    """Refuse a command without ``apiVersion`` under ``requireApiVersion``, unless a router process sent it.

    Raises:
        CommandError: 498870.
    """
    request = operation.request
    if all(request.get(name) is None for name in API_PARAMETERS) and operation.client.peer != LOCAL_PEER:
        raise CommandError(
            _VERSION_REQUIRED,
            "The apiVersion parameter is required, please configure your MongoClient's API version",
        )


def check_api_arguments(operation: Operation, entry: RouterCommand) -> None:
    """Check a command's Stable API arguments.

    Raises:
        CommandError: TypeMismatch; 4886600 if the version is missing; APIVersionError, APIStrictError,
            APIDeprecationError.
    """
    arguments = Arguments.of(operation.request, "APIParametersFromClient")
    version = arguments.maybe_string(b"apiVersion")
    is_strict = arguments.boolean(b"apiStrict", strictness=Strictness.BOOL)
    refuses_deprecated = arguments.boolean(b"apiDeprecationErrors", strictness=Strictness.BOOL)
    if version is None:
        if any(arguments.has(name) and not arguments.is_null(name) for name in API_PARAMETERS[1:]):
            raise CommandError(_NO_VERSION, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
        return
    _check_version(version)
    name = entry.name
    if is_strict and version not in entry.api_versions:
        raise CommandError(
            ErrorCode.APIStrictError,
            f"Provided apiStrict:true, but the command {name} is not in API Version {version}. Information on "
            f"supported commands and migrations in API Version {version} can be found at "
            "https://dochub.mongodb.org/core/manual-versioned-api",
        )
    if refuses_deprecated and version in entry.deprecated_api_versions:
        raise CommandError(
            ErrorCode.APIDeprecationError,
            f"Provided apiDeprecationErrors:true, but the command {name} is deprecated in API Version {version}",
        )


def _check_version(version: str) -> None:
    if version == _UNRELEASED:
        raise CommandError(ErrorCode.APIVersionError, f"Cannot accept API version {version}")
    if version != "1":
        raise CommandError(ErrorCode.APIVersionError, 'API version must be "1"')


def use_session(operation: Operation, _: RouterCommand) -> None:
    """Record the use of a command's session, which belongs to the command's user.

    Raises:
        CommandError: Unauthorized for a session reserved for daemons; TooManyLogicalSessions; or an error of
            `check_lsid` or `check_transaction_fields`.
    """
    request, sessions = operation.request, operation.context.sessions
    fields = request.fields
    span = fields.get(b"lsid")
    if span is not None:
        if span[0] != OBJECT:
            raise wrong_type(LSID, span[0], "object")
        lsid = request.body[span[2] : span[3]]
        if request.name in _NOT_A_USE:
            refuse_reserved_session(request)
            SessionId.read(lsid)
        elif not sessions.use_again(lsid, time()):
            refuse_reserved_session(request)
            sessions.use(lsid, time(), operation.user_name)
    if TXN_NUMBER in fields or AUTOCOMMIT in fields or START_TRANSACTION in fields:
        check_transaction_fields(request)
