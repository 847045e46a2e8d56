"""Commands about this server: its identity in the cluster, parameters, fail points, operations, blocked writes."""

from typing import Any, Final

from shardwright.daemon.current_op import find_operations, found_operations
from shardwright.daemon.fail_points import parse_configuration, parse_wait
from shardwright.daemon.sidecar.member_login import MODE
from shardwright.daemon.sidecar.own_operations import union_with
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.shardd.cluster.identity import ShardIdentity
from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.commands.server_parameters import PARAMETERS, get_parameter, set_parameter
from shardwright.shardd.ddl.participants import execute_once
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.two_phase_commit.coordinators import LIFETIME_LIMIT
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH


async def add_shard(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Persist and adopt the shard identity that a config server assigns, unless this set has it already.

    Raises IllegalOperation if this is already another shard, or belongs to another cluster.
    """
    identity = ShardIdentity.from_document(request.get(b"shardIdentity") or {})
    try:
        current = await shard.context.load_identity()
    except CommandError as error:
        if error.code != ErrorCode.ShardingStateNotInitialized:
            raise
    else:
        if not current.is_same_shard(identity):
            raise CommandError(
                ErrorCode.IllegalOperation,
                f"cannot become shard {identity.shard_name} of cluster {identity.cluster_id}: this is already shard "
                f"{current.shard_name} of cluster {current.cluster_id}",
            )
        await _end_former_membership(shard, current)
    document = identity.to_document()
    update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
    await shard.context.mongod.write(
        "admin", {"update": "system.version", "updates": [update], "writeConcern": MAJORITY}
    )
    shard.context.adopt_identity(identity)
    return {}


async def _end_former_membership(shard: ShardComponents, identity: ShardIdentity) -> None:
    """Admit operations that coordinators blocked before this shard was removed; their commands do not arrive any more.

    Does nothing on a current shard of the cluster, where this command can only be a late one.
    """
    catalog = await shard.context.catalog()
    if identity.shard_name not in await catalog.shards():
        await shard.renames.abandon()
        await shard.blocked.abandon()


async def sharding_state(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report this shard's identity and its cached collection versions."""
    try:
        identity = await shard.context.load_identity()
    except CommandError as error:
        if error.code != ErrorCode.ShardingStateNotInitialized:
            raise
        return {"enabled": False}
    versions = {
        state.namespace: state.table.shard_version(identity.shard_name).lastmod
        for state in shard.context.namespaces
        if state.table is not None
    }
    return {
        "enabled": True,
        "configServer": identity.config_string,
        "shardName": identity.shard_name,
        "clusterId": identity.cluster_id,
        "versions": versions,
    }


_GENERIC: Final = frozenset({"lsid", "maxTimeMS", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors"})


async def set_parameters(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Change parameters of the daemon or mongod; ``was`` in the reply is the former value of the first one."""
    given = _arguments(request)
    of_mongod = {name: value for name, value in given.items() if name not in PARAMETERS}
    reply = {}
    if of_mongod or not given:
        if MODE in of_mongod:
            CLUSTER_AUTH.check_ability(of_mongod[MODE])
        reply = await shard.context.mongod.command("admin", {"setParameter": 1, **of_mongod})
        if MODE in of_mongod:
            CLUSTER_AUTH.adopt_mode(of_mongod[MODE])
        if LIFETIME_LIMIT in of_mongod:
            await shard.transaction_coordinators.read_lifetime()
    for name, value in given.items():
        if name in PARAMETERS:
            reply.setdefault("was", set_parameter(shard.parameters, name, value))
    return reply


async def get_parameters(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return the named parameters, or all with ``getParameter: "*"`` or ``{allParameters: true}``."""
    what, given = request.get(b"getParameter"), _arguments(request)
    wants_all = what == "*" or (isinstance(what, dict) and bool(what.get("allParameters")))
    shows_details = isinstance(what, dict) and bool(what.get("showDetails"))
    of_mongod = {name: value for name, value in given.items() if name not in PARAMETERS}
    reply = {}
    if of_mongod or wants_all or not given:
        reply = await shard.context.mongod.command("admin", {"getParameter": what, **of_mongod})
    for name in PARAMETERS if wants_all else [name for name in given if name in PARAMETERS]:
        value = get_parameter(shard.parameters, name)
        details = {"value": value, "settableAtRuntime": True, "settableAtStartup": True}
        reply[name] = details if shows_details else value
    return reply


def _arguments(request: Request) -> dict[str, Any]:
    return {
        name: value
        for position, (name, value) in enumerate(request.document.items())
        if position and not name.startswith("$") and name not in _GENERIC
    }


async def configure_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Turn a fail point of the daemon or mongod on or off; ``count`` in the reply is how often it was entered."""
    wanted = parse_configuration(request)
    fail_points = shard.context.fail_points
    if wanted.name in fail_points.names:
        return {"count": fail_points.configure(wanted.name, wanted.mode, wanted.data)}
    return await shard.context.mongod.command(
        "admin", {"configureFailPoint": wanted.name, "mode": wanted.mode, "data": wanted.data}
    )


async def wait_for_fail_point(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a fail point has been entered ``timesEntered`` times; as in MongoDB, ``maxTimeMS`` is required."""
    wait = parse_wait(request)
    if wait.name not in shard.context.fail_points.names:
        return await shard.context.mongod.command(
            "admin", {"waitForFailPoint": wait.name, "timesEntered": wait.times, "maxTimeMS": wait.max_time_ms}
        )
    await shard.context.fail_points.wait_entered(wait.name, wait.times)
    return {}


async def current_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return the operations that match the command's fields."""
    operations = shard.operations()
    question = find_operations(request.document, [union_with(operations)] if operations else ())
    return {"inprog": found_operations(await shard.context.mongod.command("admin", question))}


async def kill_op(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Kill an operation of the daemon (see `ShardComponents.operations`) or of its mongod."""
    opid = request.get(b"op")
    kills = shard.migrations.kill, shard.coordinators.kill, shard.waiting.kill
    if isinstance(opid, int) and any(kill(opid) for kill in kills):
        return {"info": "attempting to kill op"}
    named = {} if opid is None else {"op": opid}
    return await shard.context.mongod.command("admin", {"killOp": 1, **named})


async def set_user_write_block_mode_of_shard(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Enter a phase of ``setUserWriteBlockMode`` on this shard.

    The running coordinators end before writes are blocked, because the block would refuse their writes.

    Raises:
        CommandError: TypeMismatch or BadValue, the arguments; TransactionTooOld, the command is late.
    """
    arguments = Arguments.of(request)
    block = arguments.required_boolean(b"global", Strictness.BOOL)
    phase = _phase(arguments)

    async def enter() -> None:
        mongod = shard.context.mongod
        await UserWriteBlock(mongod, mongod.global_lock).enter(phase, block=block)
        if block and phase is Phase.PREPARE:
            await shard.coordinators.wait_user_writes_over()

    await execute_once(shard.context, request, "the writes of users", enter)
    return {}


async def set_user_write_block_mode(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Refuse the command with IllegalOperation, because the servers of a cluster change together."""
    raise CommandError(ErrorCode.IllegalOperation, "setUserWriteBlockMode cannot be run on shardsvrs nor configsvrs")


def _phase(arguments: Arguments) -> Phase:
    name = arguments.string(b"phase")
    try:
        return Phase(name)
    except ValueError:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{name}' for field '_shardsvrSetUserWriteBlockMode.phase' is not a valid value.",
        ) from None
