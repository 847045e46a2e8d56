"""The defragmentation of all collections that are to be defragmented, each in a task of its own."""

from functools import partial
from typing import Final

import trio

from shardwright.configd.balancer.defragmentation.run import Defragmentation
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.primary.primary import Primary
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

LOOK_SECONDS: Final = 10.0
"""How often collections are looked for, apart from whenever a user has changed the settings of one."""


class Defragmenter:
    """Starts the defragmentation of collections in one term; what former primaries have begun goes on.

    Args:
        primary: the term's resources.
        metrics: counts what is done.
    """

    def __init__(self, primary: Primary, metrics: BalancerMetrics) -> None:
        self._primary = primary
        self._metrics = metrics
        self._running: set[str] = set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for namespace in await self._wanted():
                    if namespace not in self._running:
                        self._running.add(namespace)
                        nursery.start_soon(self._defragment, namespace)
                await self._primary.balancer_rounds.wait_changed(LOOK_SECONDS)

    async def _wanted(self) -> list[str]:
        try:
            found = await self._primary.catalog.find("collections", {"defragmentCollection": True})
        except (CommandError, BackendError) as error:
            logger.warning("Could not look for collections to defragment", error=str(error))
            return []
        return [str(document["_id"]) for document in found]

    async def _defragment(self, namespace: str) -> None:
        try:
            await Defragmentation(self._primary, namespace, partial(self._metrics.defragmentation.add)).run()
        finally:
            self._running.discard(namespace)
