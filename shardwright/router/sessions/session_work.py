"""Cursors and transactions of sessions in this process, and how to end them.

For a session that its client has ended, MongoDB ends only the cursors. The transaction then keeps its locks on the
shards for ``transactionLifetimeLimitSeconds``. This router aborts it at once.
"""

from collections.abc import Container

import trio

from shardwright.router.context.router_context import RouterContext
from shardwright.router.transactions.commit_and_abort import abort_implicitly
from shardwright.wire.error_codes import ErrorCode, code_name


def sessions_at_work(context: RouterContext) -> set[bytes]:
    """Return the sessions that have cursors or an open transaction (`SessionId.key`)."""
    return context.cursors.sessions() | context.transactions.sessions_with_open_ones()


async def end_work(context: RouterContext, sessions: Container[bytes] | None) -> int:
    """Kill the cursors of the given sessions (`SessionId.key`), or of all, and abort their open transactions.

    A transaction whose commit has begun is not aborted. A shard that cannot be reached aborts its part later by itself.
    Returns the number of cursors killed.
    """
    cursors = context.cursors
    killed = cursors.kill_all() if sessions is None else cursors.kill_sessions(sessions)
    async with trio.open_nursery() as nursery:
        for transaction in context.transactions.open_in(sessions):
            context.transactions.statistics.aborts[code_name(ErrorCode.Interrupted)] += 1
            nursery.start_soon(abort_implicitly, context.sender, transaction)
    return killed
