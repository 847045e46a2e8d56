"""Executing a coordinator's commands only once, and not at all if they arrive late.

A coordinator raises its session's transaction number before each attempt (`shardd.ddl.coordinators.coordinator`), and
its participants record which commands they have executed (`daemon.sidecar.command_sessions`).
"""

from collections.abc import Awaitable, Callable

from shardwright.daemon.sidecar import command_sessions
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.wire.request import Request


async def execute_once(
    context: ShardContext, request: Request, subject: str, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work`` unless the request has been executed already. Requests about one subject run one after the other.

    A request without a session is always executed.

    Args:
        context: this shard daemon's context.
        request: the coordinator's command.
        subject: the collection or database it is about.
        work: executes it; if that fails, the request may be repeated.

    Raises:
        CommandError: TransactionTooOld, the coordinator has sent a newer command; TypeMismatch or InvalidUUID, the
            session is malformed; or raised by ``work``.
    """
    async with context.ddl_locks.hold(f"participant of {subject}"):
        await command_sessions.execute_once(context.mongod, command_sessions.CommandSession.of(request), work)
