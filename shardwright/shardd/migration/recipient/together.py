"""Running several parts of a migration concurrently."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError

Work: TypeAlias = Callable[[], Awaitable[None]]


async def run_together(*works: Work, meanwhile: Work | None = None) -> None:
    """Run all ``works`` concurrently until they have ended.

    Args:
        works: functions without arguments.
        meanwhile: runs alongside them and is cancelled when they have ended.

    Raises:
        CommandError: the error of the first that failed; the others have been cancelled.
        BackendError: likewise.
        RemoteProtocolError: likewise.
    """
    failures: list[Exception] = []

    async def run(work: Work) -> None:
        try:
            await work()
        except (CommandError, BackendError, RemoteProtocolError) as error:
            failures.append(error)
            everything.cancel_scope.cancel()

    async with trio.open_nursery() as everything:
        if meanwhile is not None:
            everything.start_soon(run, meanwhile)
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(run, work)
        everything.cancel_scope.cancel()
    for failure in failures:
        raise failure
