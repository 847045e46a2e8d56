"""Logical sessions: ``startSession``, ``refreshSessions``, ``endSessions``, and the commands that kill them.

The router notes which sessions are used, and writes them to ``config.system.sessions`` (`router.sessions`). Each mongod
that an operation of a session reached knows the session too, so commands that keep sessions alive, or end them, are
forwarded to all shards. Where a router has several processes, a session may have been used in all of them.
"""

from collections.abc import Collection
from time import time
from typing import Any, Final
from uuid import uuid4

import bson
import trio
from bson.binary import Binary

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.router.sessions.session_refresh import refresh_sessions as refresh_sessions_of_router
from shardwright.router.transactions.abort import abort_implicitly
from shardwright.sharding import session_arguments
from shardwright.sharding.session_cache import SessionId
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import LOGICAL_SESSION_TIMEOUT_MINUTES
from shardwright.wire.message import op_msg

_TELLING_SECONDS_MAX: Final = 1.0

_OF_CLIENT: Final = frozenset({"lsid", "$clusterTime"})


@command("startSession")
async def start_session(operation: Operation) -> Reply:
    """Begins a logical session."""
    lsid = {"id": Binary.from_uuid(uuid4())}
    operation.context.sessions.use(bson.encode(lsid), time())
    return {"id": lsid, "timeoutMinutes": LOGICAL_SESSION_TIMEOUT_MINUTES}


@command("refreshSessions", api_versions=("1",), arguments=())
async def refresh_sessions(operation: Operation) -> Reply:
    """Keeps sessions from expiring."""
    for session in session_arguments.sessions(operation.request):
        operation.context.sessions.use(bson.encode(session.to_document()), time())
    await _tell_all_shards(operation)
    return {}


@command("endSessions", api_versions=("1",), arguments=())
async def end_sessions(operation: Operation) -> Reply:
    """Ends sessions, and their cursors with them."""
    ended = session_arguments.sessions(operation.request)
    operation.context.sessions.end(ended)
    operation.context.cursors.kill_sessions({session.id for session in ended})
    if not await _tell_siblings(operation):
        await _tell_all_shards(operation)
    return {}


@command("refreshLogicalSessionCacheNow", test_only=True)
async def refresh_logical_session_cache_now(operation: Operation) -> Reply:
    """Writes the sessions that are known here to ``config.system.sessions`` now; the shards write theirs as well."""
    await refresh_sessions_of_router(operation.context)
    if not await _tell_siblings(operation):
        await _on_all_shards(operation)
    return {}


@command("killSessions")
async def kill_sessions(operation: Operation) -> Reply:
    """Ends sessions together with the operations that run in them; with none named, all sessions."""
    await _kill(operation, session_arguments.sessions(operation.request) or None)
    return {}


@command("killAllSessions")
async def kill_all_sessions(operation: Operation) -> Reply:
    """Ends the sessions of the users named, or all."""
    # No session belongs to a user, since nobody is authenticated.
    await _kill(operation, () if session_arguments.users(operation.request) else None)
    return {}


@command("killAllSessionsByPattern")
async def kill_all_sessions_by_pattern(operation: Operation) -> Reply:
    """Ends the sessions that match a pattern, or all."""
    await _kill(operation, session_arguments.patterns(operation.request))
    return {}


async def _kill(operation: Operation, sessions: Collection[SessionId] | None) -> None:
    """End the transactions and cursors of some sessions here, and all that runs in them on the shards.

    Args:
        operation: the command.
        sessions: the sessions; None for all.

    Raises:
        CommandError: a shard failed.
    """
    table = operation.context.transactions
    for transaction in table.open_in(None if sessions is None else {session.key for session in sessions}):
        table.statistics.aborts[code_name(ErrorCode.Interrupted)] += 1
        await abort_implicitly(operation.context.sender, transaction)
    if sessions is None:
        operation.context.cursors.kill_all()
    else:
        operation.context.cursors.kill_sessions({session.id for session in sessions})
    if not await _tell_siblings(operation):
        await _on_all_shards(operation)


async def _tell_siblings(operation: Operation) -> bool:
    """Have the other processes of this router do the same; returns whether one of them sent this request."""
    return await tell_siblings(operation.context, operation.request, _command(operation)) is None


async def _on_all_shards(operation: Operation) -> None:
    """Forward the request to the primaries of all shards.

    Raises:
        CommandError: a shard failed.
    """
    raise_worst(await _replies_of_all_shards(operation))


async def _tell_all_shards(operation: Operation) -> None:
    """Forward the request to the shards that can be reached now.

    A client that closes its connections must not wait for a shard that is gone, and gets no error from a genuine router
    either: a shard that could not be reached ends the session when it expires there.
    """
    with trio.move_on_after(_TELLING_SECONDS_MAX):
        await _replies_of_all_shards(operation)


async def _replies_of_all_shards(operation: Operation) -> list[ShardReply]:
    body = bson.encode(_command(operation))
    shards = await operation.context.shards.all_ids()
    frames = {shard: op_msg(body, request_id=next_request_id()) for shard in shards}
    return await scatter(operation, frames, may_repeat=True)


def _command(operation: Operation) -> dict[str, Any]:
    """The client's command, without its session and time."""
    return {name: value for name, value in operation.request.document.items() if name not in _OF_CLIENT}
