"""Running several reads of a stage at once, a bounded number at a time."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from shardwright.wire.errors import CommandError

CONCURRENT_READS_MAX: Final = 8
"""How many aggregations one stage runs at once."""


async def read_each(keys: Iterable[bytes], read: Callable[[bytes], Awaitable[list[bytes]]]) -> dict[bytes, list[bytes]]:
    """The documents read for each key. After a failure no further read begins; those under way end first.

    Raises:
        CommandError: the first failure.
    """
    found: dict[bytes, list[bytes]] = {}
    failures: list[CommandError] = []
    waiting = iter(keys)

    async def read_some() -> None:
        for key in waiting:
            try:
                found[key] = await read(key)
            except CommandError as error:
                failures.append(error)
            if failures:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENT_READS_MAX):
            nursery.start_soon(read_some)
    if failures:
        raise failures[0]
    return found
