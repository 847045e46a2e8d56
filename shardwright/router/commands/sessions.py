"""Logical sessions: ``startSession``, ``refreshSessions``, ``endSessions``, and the commands that kill them.

The router records the sessions in use in ``config.system.sessions`` (`router.sessions`). Each mongod that an operation
of a session reached also caches the session. Commands that refresh or end sessions are therefore forwarded to all
shards, and commands that kill them to all members. Those that end or kill sessions also go to the other processes of
the router, where a session may have been used.

A session belongs to its user. Shards and other processes receive these commands as the cluster's own, so the forwarded
commands name the owners.
"""

from collections.abc import Iterable
from contextlib import suppress
from time import time
from typing import Any, Final
from uuid import uuid4

import bson
import trio
from bson.binary import UUID_SUBTYPE, Binary

from shardwright.daemon.users import CLUSTER
from shardwright.router.access.needs import Need
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply, raise_worst
from shardwright.router.sessions.session_refresh import refresh_sessions as refresh_sessions_of_router
from shardwright.router.sessions.session_work import end_work
from shardwright.sharding import logical_sessions
from shardwright.sharding.logical_sessions import ALL_SESSIONS, NO_USER, MeantSessions, SessionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.topology import ServerType
from shardwright.wire.transport.client import decode_reply

_TELLING_SECONDS_MAX: Final = 1.0
_MEMBER_SECONDS_MAX: Final = 5.0
"""The longest wait for a secondary to kill sessions."""

_OF_CLIENT: Final = frozenset({"lsid", "$clusterTime"})
_TO_NAME_OTHERS: Final = Need("impersonate", CLUSTER)
_TO_KILL_OTHERS: Final = Need("killAnySession", CLUSTER)


async def start_session(operation: Operation) -> Reply:
    """Begins a logical session."""
    session, context = SessionId(uuid4().bytes, operation.user or NO_USER), operation.context
    context.sessions.use(bson.encode(session.to_document()), time(), operation.user_name)
    timeout = context.parameters["localLogicalSessionTimeoutMinutes"]
    return {"id": {"id": Binary(session.id, UUID_SUBTYPE)}, "timeoutMinutes": timeout}


async def refresh_sessions(operation: Operation) -> Reply:
    """Keeps sessions from expiring."""
    refreshed = _named_sessions(operation)
    for session in refreshed:
        user = operation.user_name if session.uid == operation.user else ""
        operation.context.sessions.use(bson.encode(session.to_document()), time(), user)
    await _tell_all_shards(operation, _command_about(operation, refreshed))
    return {}


async def end_sessions(operation: Operation) -> Reply:
    """Ends sessions, and with them their cursors and their transactions that are not being committed."""
    ended = _named_sessions(operation)
    operation.context.sessions.end(ended)
    with trio.move_on_after(_TELLING_SECONDS_MAX):
        await end_work(operation.context, {session.key for session in ended})
    told = _command_about(operation, ended)
    if not await _tell_siblings(operation, told):
        await _tell_all_shards(operation, told)
    return {}


async def refresh_logical_session_cache_now(operation: Operation) -> Reply:
    """Writes the sessions that are known here to ``config.system.sessions`` now; the shards write theirs as well."""
    await refresh_sessions_of_router(operation.context)
    told = _command(operation)
    if not await _tell_siblings(operation, told):
        await _on_all_shards(operation, told)
    return {}


async def kill_sessions(operation: Operation) -> Reply:
    """Ends sessions of the user with the operations that run in them; with none named, all that the user has."""
    named = _named_sessions(operation)
    if named:
        await _kill(operation, MeantSessions(named))
    else:
        await _kill(operation, MeantSessions.of_users([operation.user]) if operation.user else ALL_SESSIONS)
    return {}


async def kill_all_sessions(operation: Operation) -> Reply:
    """Ends the sessions of the users named, or all."""
    await _kill(operation, logical_sessions.users(operation.request))
    return {}


async def kill_all_sessions_by_pattern(operation: Operation) -> Reply:
    """Ends the sessions that match a pattern, or all."""
    await _kill(operation, logical_sessions.patterns(operation.request))
    return {}


def _named_sessions(operation: Operation) -> frozenset[SessionId]:
    """Return the sessions in the argument, by default the user's own; others require a privilege."""
    access = operation.context.access
    enough = (_TO_NAME_OTHERS, _TO_KILL_OTHERS) if operation.request.name == "killSessions" else (_TO_NAME_OTHERS,)
    may_name_others = access is None or any(access.allows(operation.client, need) for need in enough)
    return logical_sessions.sessions(operation.request, operation.user or NO_USER, may_name_others=may_name_others)


async def _kill(operation: Operation, sessions: MeantSessions) -> None:
    """End the transactions and cursors of some sessions here, and all their operations on the shards.

    Raises:
        CommandError: HostUnreachable if some members did not answer.
    """
    await end_work(operation.context, None if sessions.all_of_them else sessions)
    told = {"killAllSessionsByPattern": sessions.patterns()} if operation.user else _command(operation)
    if await _tell_siblings(operation, told):
        return
    replies, failed = await _on_all_members(operation, told)
    raise_worst(replies)
    if failed:
        raise CommandError(ErrorCode.HostUnreachable, "Failed to kill on some hosts", extra={"failedHosts": failed})


async def _tell_siblings(operation: Operation, told: dict[str, Any]) -> bool:
    """Send a command to the other processes of this router; return whether one of them sent this request."""
    return await tell_siblings(operation.context, operation.request, told) is None


async def _on_all_shards(operation: Operation, told: dict[str, Any]) -> None:
    """Send a command to the primaries of all shards."""
    raise_worst(await _replies_of_all_shards(operation, told))


async def _tell_all_shards(operation: Operation, told: dict[str, Any]) -> None:
    """Send a command to the shards that can be reached now.

    A client that closes its connections must not wait for an unreachable shard. Like mongos, this reports no error: the
    session expires on a shard that was not reached.
    """
    with trio.move_on_after(_TELLING_SECONDS_MAX):
        await _replies_of_all_shards(operation, told)


async def _on_all_members(operation: Operation, told: dict[str, Any]) -> tuple[list[ShardReply], list[str]]:
    """Send a command to all members of all shards, because sessions also have cursors on secondaries.

    A primary that is replaced during the command is a secondary from then on.

    Returns:
        The replies of the primaries, and the addresses of the other members that did not do it.
    """
    body = bson.encode({**told, "$db": operation.request.db})
    frame = op_msg(body, request_id=next_request_id())
    shards, sender = operation.context.shards, operation.sender
    replies: dict[str, ShardReply] = {}
    failed = set[str]()

    async def tell(address: str) -> None:
        failed.add(address)
        with suppress(BackendError), trio.move_on_after(_MEMBER_SECONDS_MAX):
            if decode_reply(await sender.exchange(address, frame))["ok"]:
                failed.discard(address)

    async def tell_set(shard_id: str) -> None:
        await sender.send_into(replies, shard_id, frame, PRIMARY)
        shard = shards.get_known(shard_id)
        for address, member in {} if shard is None else shard.client.monitor.members.items():
            if address != replies[shard_id].address and member.type is not ServerType.ARBITER:
                nursery.start_soon(tell, address)

    async with trio.open_nursery() as nursery:
        for shard_id in await shards.all_ids():
            nursery.start_soon(tell_set, shard_id)
    return list(replies.values()), sorted(failed)


async def _replies_of_all_shards(operation: Operation, told: dict[str, Any]) -> list[ShardReply]:
    body = bson.encode({**told, "$db": operation.request.db})
    shards = await operation.context.shards.all_ids()
    frames = {shard: op_msg(body, request_id=next_request_id()) for shard in shards}
    return await scatter(operation, frames, may_repeat=True)


def _command_about(operation: Operation, sessions: Iterable[SessionId]) -> dict[str, Any]:
    """Return the client's command with the owners of the sessions in its argument."""
    named = [session.to_document() for session in sessions]
    return {**_command(operation), **({operation.request.name: named} if operation.user else {})}


def _command(operation: Operation) -> dict[str, Any]:
    """Return the client's command without its session and cluster time."""
    return {name: value for name, value in operation.request.document.items() if name not in _OF_CLIENT}
