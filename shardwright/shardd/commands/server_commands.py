"""Commands about this server: its identity in the cluster, parameters, fail points, operations, blocked writes.

Also ``coordinateCommitTransaction``, a router's request that this server coordinates the two-phase commit of a
transaction.
"""

from collections import Counter
from typing import Any, Final

from shardwright.daemon.current_op import find_operations, found_operations, union_with
from shardwright.daemon.fail_points import parse_configuration, parse_wait
from shardwright.daemon.sidecar.client_authentication import MODE
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import append_oplog_note
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.shardd.commands.command import PARAMETERS, ShardComponents, get_parameter, set_parameter
from shardwright.shardd.ddl.participants import execute_once
from shardwright.shardd.exchange.remote_sets import ShardIdentity
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.two_phase_commit.commit_state import TransactionId
from shardwright.shardd.two_phase_commit.coordinators import LIFETIME_LIMIT
from shardwright.sharding.transaction_protocol import check_transaction_fields
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import index
from shardwright.wire.request import Request

_NAME: Final = "coordinateCommitTransaction"
_PARTICIPANT: Final = f"{_NAME}.participants"
_WRITE_CONCERN_ERROR: Final = "writeConcernError"
_NO_MORE_THAN_A_MAJORITY: Final = (0, 1, "majority")


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
        # Otherwise the recovery could restore critical sections from documents that it read before their removal.
        await shard.context.recovery_gate.wait_open()
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
    cluster_auth = shard.context.sidecar.transport.cluster_auth
    reply = {}
    if of_mongod or not given:
        if MODE in of_mongod:
            cluster_auth.check_ability(of_mongod[MODE])
        reply = await shard.context.mongod.command("admin", {"setParameter": 1, **of_mongod})
        if MODE in of_mongod:
            cluster_auth.adopt_mode(of_mongod[MODE])
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


async def coordinate_commit_transaction(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Commit a transaction on all participants or none; without participants, return the outcome of an earlier commit.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; 51162, a shard is named twice; or the request is malformed.
    """
    participants = [_shard_of(each) for each in Arguments.of(request).raw_documents(b"participants")]
    identity = _transaction_of(request)
    for participant, count in Counter(participants).items():
        if count > 1:
            raise CommandError(51162, f"Participant list contains duplicate shard {participant}")
    reply = await shard.transaction_coordinators.commit(identity, participants)
    # The decision is on a majority in any case.
    error = reply.get(_WRITE_CONCERN_ERROR) or await _wait_write_concern(shard.context.mongod, request)
    return {_WRITE_CONCERN_ERROR: error} if error else {}


def _shard_of(participant: bytes) -> str:
    """Return the shard id of a participant, or raise 40414, 40415 or TypeMismatch."""
    arguments = Arguments(participant, _PARTICIPANT)
    for name in index(participant):
        if name != b"shardId":
            raise unknown_field(f"{_PARTICIPANT}.{name.decode(errors='replace')}")
    return arguments.string(b"shardId")


def _transaction_of(request: Request) -> TransactionId:
    """Return the transaction of a request, or raise CommandFailed if it has no session."""
    check_transaction_fields(request)
    lsid = request.fields.get(b"lsid")
    if lsid is None or b"txnNumber" not in request.fields:
        raise CommandError(ErrorCode.CommandFailed, f"{_NAME} must be run within a transaction")
    return TransactionId.read(request.body, lsid, int(request.get(b"txnNumber")))


async def _wait_write_concern(mongod: LocalMongod, request: Request) -> dict[str, Any] | None:
    """Wait for a write concern that exceeds a majority; return its error, if any. mongod may refuse unknown tags."""
    concern = request.get(b"writeConcern") or {}
    if concern.get("w", 1) in _NO_MORE_THAN_A_MAJORITY:
        return None
    note = {"appendOplogNote": 1, "data": {"msg": _NAME}, "writeConcern": concern}
    error: dict[str, Any] | None = (await append_oplog_note(mongod.command, note)).get(_WRITE_CONCERN_ERROR)
    return error
