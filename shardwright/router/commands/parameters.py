"""Settings of the router and of the cluster.

The router has parameters (their table is in `router.context.parameters`), options, recent log lines and the rules for
slow operations (``profile``). The config servers store settings for all servers: cluster parameters, the feature
compatibility version, the user write block, and the default read and write concerns.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.objectid import ObjectId

from shardwright.daemon.logs import LOG_NAMES, recent
from shardwright.daemon.survey import ask_members, running_routers
from shardwright.router.context.parameters import PARAMETERS
from shardwright.router.context.router_context import RouterContext
from shardwright.router.ddl.coordinated import MAJORITY
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import is_from_sibling, tell_siblings
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.router.replies.shard_reply import answer_in
from shardwright.sharding.catalog.reads import read_feature_version
from shardwright.sharding.feature_version import NEWEST, check_obstacles, may_be_obstacle, upgrade_report
from shardwright.wire.arguments import GENERIC_ARGUMENTS, Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.host_and_port import ConnectionString, HostAndPort
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import decode_document, raw_document
from shardwright.wire.transport.client import handshake_document

_NOT_PARAMETERS: Final = GENERIC_ARGUMENTS | {b"getParameter", b"setParameter"}


async def get_parameter(operation: Operation) -> Reply:
    """The values of parameters, of all of them with ``"*"``."""
    asked = operation.argument(b"getParameter")
    options: dict[str, Any] = asked if isinstance(asked, dict) else {}
    values = operation.context.parameters.all()
    wanted = values if asked == "*" or options.get("allParameters") else dict.fromkeys(_named(operation))
    found = {
        name: _shown(name, values[name], details=bool(options.get("showDetails"))) for name in wanted if name in values
    }
    if not found:
        raise PlainError("no option found to get")
    return found


async def set_parameter(operation: Operation) -> Reply:
    """Changes a parameter, in all processes of this router."""
    names = _named(operation)
    if not names:
        raise PlainError("no option found to set, use help:true to see options ")
    parameters = operation.context.parameters
    for name in names:
        if name not in PARAMETERS:
            raise PlainError(f"attempted to set unrecognized parameter [{name}], use help:true to see options ")
        if PARAMETERS[name].check is None:
            raise PlainError(f"not allowed to change [{name}] at runtime")
    values = {name: operation.argument(name.encode()) for name in names}
    old = [parameters.set(name, value) for name, value in values.items()]
    await tell_siblings(operation.context, operation.request, {"setParameter": 1, **values})
    return {"was": old[0]}


async def get_command_line_options(operation: Operation) -> Reply:
    """The command line of this router, and the options that any source sets, by their keys in a file."""
    options = operation.context.options
    given = dict(options.given)
    given["net"] = {"port": HostAndPort.parse(options.address).port, **given.get("net", {})}
    given["sharding"] = {"configDB": str(options.config_servers)}
    if options.parameters:
        given["setParameter"] = {**given.get("setParameter", {}), **dict(sorted(options.parameters.items()))}
    return {"argv": list(options.arguments), "parsed": dict(sorted(given.items()))}


async def get_log(operation: Operation) -> Reply:
    """The newest lines of the log, or the warnings of the start."""
    name = Arguments.of(operation.request).string(b"getLog")
    if name == "*":
        return {"names": list(LOG_NAMES)}
    excerpt = recent.excerpt(name)
    return {"totalLinesWritten": excerpt.total_lines_written, "log": list(excerpt.lines)}


def _named(operation: Operation) -> list[str]:
    """Return the names of the parameters in a command."""
    fields = operation.request.fields
    return [
        name.decode(errors="replace") for name in fields if name not in _NOT_PARAMETERS and not name.startswith(b"$")
    ]


def _shown(name: str, value: object, *, details: bool) -> object:
    if not details:
        return value
    parameter = PARAMETERS[name]
    return {
        "value": value,
        "settableAtRuntime": parameter.check is not None,
        "settableAtStartup": parameter.parse is not None,
    }


_TOO_OLD: Final = frozenset({"5.0", "5.3"})
"""Versions that a mongod 6.0 can be downgraded to, and with which it refuses ``collectionUUID``."""


async def get_cluster_parameter(operation: Operation) -> Reply:
    """The values of cluster parameters."""
    asked = {"getClusterParameter": operation.argument(b"getClusterParameter")}
    return answer_in(await operation.context.catalog.command(asked))


async def set_cluster_parameter(operation: Operation) -> Reply:
    """Changes a cluster parameter on all servers."""
    change = {"_configsvrSetClusterParameter": operation.argument(b"setClusterParameter"), "writeConcern": MAJORITY}
    await operation.context.catalog.command(change)
    return {}


async def set_user_write_block_mode(operation: Operation) -> Reply:
    """Blocks the writes of users in the whole cluster, or allows them again."""
    arguments = Arguments.of(operation.request)
    is_blocked = arguments.required_boolean(b"global", Strictness.BOOL)
    setting = {"_configsvrSetUserWriteBlockMode": 1, "global": is_blocked, "writeConcern": MAJORITY}
    await operation.context.catalog.command(setting)
    return {}


async def set_feature_compatibility_version(operation: Operation) -> Reply:
    """Enables or disables the features that an older version of MongoDB does not understand, on all servers."""
    name = b"setFeatureCompatibilityVersion"
    arguments = Arguments.of(operation.request)
    version = arguments.string(name)
    if version in _TOO_OLD:
        # Migrations and collMod operations would fail, or be retried for ever.
        raise CommandError(
            ErrorCode.CannotDowngrade,
            f"Cannot set featureCompatibilityVersion to {version}: shards name collections by UUID, which needs 6.0",
        )
    confirmation = arguments.present(b"confirm")  # of MongoDB 7.0; mongods 6.0 refuse it
    await operation.context.catalog.command({name.decode(): version, **confirmation, "writeConcern": MAJORITY})
    return {}


async def finish_upgrade(operation: Operation) -> Reply:
    """Raises the feature version of the cluster once all daemons are of one release, or (dryRun) shows it."""
    arguments = Arguments.of(operation.request)
    is_dry_run = arguments.boolean(b"dryRun")
    question = {"_configsvrFinishUpgrade": 1, "dryRun": is_dry_run, "writeConcern": MAJORITY}
    reply: dict[str, Any] = {}
    try:
        reply = answer_in(await operation.context.catalog.command(question))
    except CommandError as error:
        if error.code != ErrorCode.CommandNotFound:
            raise
    if reply.get("newest", 0) >= NEWEST:
        return reply
    # The primary of the config servers is of an older release, which does not know what is missing.
    report = await _survey(operation.context)
    if not is_dry_run:
        check_obstacles(report)
    return report


async def _survey(context: RouterContext) -> dict[str, Any]:
    """Ask all daemons which feature versions they support, as the config servers' primary does."""
    catalog = context.catalog
    version = await catalog.read(read_feature_version())
    await context.shards.reload()
    sets = [ConnectionString.parse(each.connection_string) for each in context.shards.known()]

    async def routers() -> list[dict[str, Any]]:
        return [decode_document(each) for each in await catalog.find("mongos", {})]

    members = await ask_members(context.transport, sets, lambda: handshake_document("shardwright-router"))
    now: datetime = (await catalog.command({"hello": 1}))["localTime"]
    running = await running_routers(routers, now.replace(tzinfo=UTC), may_be_obstacle)
    return upgrade_report(version, members, running)


_MAJORITY: Final = {"w": "majority"}
_GETTING: Final = "getDefaultRWConcern"


async def get_default_rw_concern(operation: Operation) -> Reply:
    """The read and write concern of requests that have none."""
    arguments = Arguments.of(operation.request)
    if arguments.boolean(b"inMemory"):
        return {**operation.context.default_concerns.report, "inMemory": True}
    return await _take(operation, {_GETTING: 1})


async def set_default_rw_concern(operation: Operation) -> Reply:
    """Sets the read or write concern of requests that have none, for the whole cluster."""
    request = operation.request
    arguments = Arguments.of(request)
    defaults = arguments.present(b"defaultReadConcern", b"defaultWriteConcern")
    reply = await _take(operation, {"setDefaultRWConcern": 1, **defaults, "writeConcern": _MAJORITY})
    await tell_siblings(operation.context, request, {_GETTING: 1})
    return reply


async def _take(operation: Operation, command_body: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command on the config servers and apply the default concerns in its reply."""
    answer = answer_in(await operation.context.catalog.command(command_body))
    operation.context.default_concerns.take(answer)
    return dict(answer)


_UNCHANGED: Final = -1
_FILTER: Final = b"filter"
_UNSET: Final = "unset"
_KNOB_IS_OFF: Final = 7283301
_NOTE: Final = (
    "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines."
)


async def profile(operation: Operation) -> Reply:
    """Shows or changes which operations are logged as slow, in all processes of this router."""
    context, request = operation.context, operation.request
    arguments = Arguments.of(request)
    arguments.required_value(b"profile")
    level = arguments.maybe_integer(b"profile", minimum=None)
    if level not in (_UNCHANGED, 0):
        raise CommandError(
            ErrorCode.BadValue,
            "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', "
            "or 'filter' settings for logging, or -1 to view current values",
        )
    slow_ms, sample_rate = arguments.maybe_integer(b"slowms", minimum=None), _sample_rate(arguments)
    given = _filter(operation, arguments)
    query = await _parsed(operation, given) if isinstance(given, bytes) else None
    rule = context.slow_operations
    reply = _settings(operation) | ({} if query is None else {"note": _NOTE})
    rule.change(slow_ms, sample_rate)
    changes: dict[str, Any] = {"profile": level, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
    if given is not None:
        rule.set_filter(request.db, query)
        changes["filter"] = _UNSET if query is None else raw_document(query)
    if slow_ms is not None or sample_rate is not None or given is not None:
        await tell_siblings(context, request, changes)
    return reply


def _settings(operation: Operation) -> dict[str, Any]:
    rule = operation.context.slow_operations
    query = rule.filter_of(operation.request.db)
    shown = {"was": 0, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
    return shown if query is None else {**shown, "filter": raw_document(query), "note": _NOTE}


def _sample_rate(arguments: Arguments) -> float | None:
    rate = arguments.maybe_number(b"sampleRate")
    if rate is not None and not 0 <= rate <= 1:
        raise CommandError(ErrorCode.BadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive")
    return rate


def _filter(operation: Operation, arguments: Arguments) -> bytes | str | None:
    """Return the raw filter on the operations to log, ``unset`` to remove it, None to keep the present one."""
    if not arguments.has(_FILTER):
        return None
    chosen = arguments.value(_FILTER)
    if chosen == _UNSET:
        return _UNSET
    if not isinstance(chosen, dict):
        raise CommandError(ErrorCode.BadValue, "Expected an object, or the string 'unset'.")
    return operation.request.raw_object(_FILTER)


async def _parsed(operation: Operation, query: bytes) -> bytes:
    """Return a filter in the form that a mongod shows after it has parsed it."""
    context = operation.context
    if is_from_sibling(operation.request):
        return query
    shard_id = await context.shards.any_id_as_told()
    # A mongod keeps a filter for each database name, even of databases that do not exist.
    db = f"parsed_{ObjectId()}"
    for value in (raw_document(query), _UNSET):
        body = bson.encode({"profile": _UNCHANGED, "filter": value, "$db": db})
        reply = await context.sender.send(shard_id, op_msg(body, request_id=next_request_id()), may_repeat=True)
        reply.raise_for_error()
    span = reply.fields[_FILTER]
    return reply.body[span[2] : span[3]]


async def set_profiling_filter_globally(operation: Operation) -> Reply:
    """Not available, as on every server that was not started with a parameter for it."""
    raise CommandError(_KNOB_IS_OFF, "setProfilingFilterGlobally command requires query knob to be enabled")
