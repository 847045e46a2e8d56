"""Killing cursors on shards that no cursor of the router needs any longer, in the background."""

from collections.abc import Iterable
from typing import Final

import trio

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.wire.errors import BackendError
from shardwright.wire.logger import get_logger

logger = get_logger("router.cursors")

_KILL_SECONDS_MAX: Final = 60.0


class RemoteKiller:
    """Kills remote cursors. `run` must be running while it is used."""

    def __init__(self) -> None:
        self._to_kill, self._killing = trio.open_memory_channel[RemoteCursor](float("inf"))

    async def run(self) -> None:
        """Kill remote cursors until cancelled."""
        async with trio.open_nursery() as nursery:
            async for remote in self._killing:
                nursery.start_soon(_kill, remote)

    def kill(self, remotes: Iterable[RemoteCursor]) -> None:
        """Kill those that are not exhausted, and discard the batches that were requested ahead of time."""
        for remote in remotes:
            remote.give_up()
            if not remote.is_exhausted:
                self._to_kill.send_nowait(remote)


async def _kill(remote: RemoteCursor) -> None:
    """Kill a cursor on a shard; one that cannot be killed now times out there."""
    try:
        with trio.fail_after(_KILL_SECONDS_MAX):
            await remote.kill()
    except (BackendError, trio.TooSlowError) as error:
        logger.debug("Could not kill a cursor on a shard", shard=remote.shard_id, error=str(error) or "timeout")
