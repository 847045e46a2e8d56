"""Logical sessions: ``startSession``, ``refreshSessions``, ``endSessions``, and the commands that kill them.

The router keeps no table of sessions. Each mongod that an operation of a session reached knows the session, so commands
that keep sessions alive, or end them, are forwarded to all shards.
"""

from collections.abc import Collection
from typing import Final
from uuid import uuid4

import bson
import trio
from bson.binary import Binary

from shardwright.router.commands import session_arguments
from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import LOGICAL_SESSION_TIMEOUT_MINUTES
from shardwright.wire.message import op_msg

_TELLING_SECONDS_MAX: Final = 1.0


@command("startSession")
async def start_session(operation: Operation) -> Reply:
    """Begins a logical session."""
    return {"id": {"id": Binary.from_uuid(uuid4())}, "timeoutMinutes": LOGICAL_SESSION_TIMEOUT_MINUTES}


@command("refreshSessions", api_versions=("1",))
async def refresh_sessions(operation: Operation) -> Reply:
    """Keeps sessions from expiring."""
    session_arguments.sessions(operation.request)
    await _tell_all_shards(operation)
    return {}


@command("endSessions", api_versions=("1",))
async def end_sessions(operation: Operation) -> Reply:
    """Ends sessions, and their cursors with them."""
    operation.context.cursors.kill_sessions(session_arguments.sessions(operation.request))
    await _tell_all_shards(operation)
    return {}


@command("refreshLogicalSessionCacheNow", test_only=True)
async def refresh_logical_session_cache_now(operation: Operation) -> Reply:
    """Makes all shards write the sessions that they know to their collections now."""
    await _on_all_shards(operation)
    return {}


@command("killSessions")
async def kill_sessions(operation: Operation) -> Reply:
    """Ends sessions together with the operations that run in them; with none named, all sessions."""
    _kill_cursors(operation, session_arguments.sessions(operation.request) or None)
    await _on_all_shards(operation)
    return {}


@command("killAllSessions")
async def kill_all_sessions(operation: Operation) -> Reply:
    """Ends the sessions of the users named, or all."""
    # No session belongs to a user, since nobody is authenticated.
    _kill_cursors(operation, () if session_arguments.users(operation.request) else None)
    await _on_all_shards(operation)
    return {}


@command("killAllSessionsByPattern")
async def kill_all_sessions_by_pattern(operation: Operation) -> Reply:
    """Ends the sessions that match a pattern, or all."""
    _kill_cursors(operation, session_arguments.patterns(operation.request))
    await _on_all_shards(operation)
    return {}


def _kill_cursors(operation: Operation, sessions: Collection[bytes] | None) -> None:
    """Kill the cursors of some sessions; None stands for all of them."""
    if sessions is None:
        operation.context.cursors.kill_all()
    else:
        operation.context.cursors.kill_sessions(sessions)


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
    command_body = {key: value for key, value in operation.request.document.items() if key != "lsid"}
    body = bson.encode(command_body)
    shards = await operation.context.shards.all_ids()
    frames = {shard: op_msg(body, request_id=next_request_id()) for shard in shards}
    return await scatter(operation, frames, may_repeat=True)
