"""Repeating what must be done in the end: steps of a recovery, and writes that others already rely on."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.errors import BackendError, CommandError

Result = TypeVar("Result")


async def until_done(
    step: Callable[[], Awaitable[Result]],
    backoff: Backoff,
    on_failure: Callable[[BackendError | CommandError, float], None],
) -> Result:
    """Run a step, and repeat it after errors of servers until it succeeds; returns its result.

    There is no deadline: the caller runs in a cancel scope, usually that of a term's nursery.

    Args:
        step: may be executed more than once, also because an attempt that failed may have been executed nevertheless.
        backoff: the pauses.
        on_failure: called with the error, and how many seconds the pause before the next attempt takes.
    """
    while True:
        try:
            return await step()
        except (BackendError, CommandError) as error:
            seconds = backoff.next_seconds()
            on_failure(error, seconds)
        await trio.sleep(seconds)
