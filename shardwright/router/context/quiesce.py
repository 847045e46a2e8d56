"""Quiesce mode: for a while before it ends, the router notifies clients waiting on hello that it is shutting down."""

import trio
from bson.objectid import ObjectId

from shardwright.wire.hello import TopologyVersion


class Quiesce:
    """Whether the router is shutting down.

    Attributes:
        has_begun: whether it is.
        topology_version: changes when that begins.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.topology_version = TopologyVersion(ObjectId(), 0)
        self._ends = 0.0
        self._begun = trio.Event()

    def begin(self, seconds: float) -> None:
        """Begin the shutdown.

        Args:
            seconds: how long running operations may continue.
        """
        self.has_begun = True
        self._ends = trio.current_time() + seconds
        self.topology_version = self.topology_version.bumped()
        self._begun.set()

    @property
    def remaining_ms(self) -> int:
        """How much of that time is left."""
        return max(0, int((self._ends - trio.current_time()) * 1000))

    @property
    def waiting(self) -> int:
        """How many tasks are in `wait_begun`."""
        return self._begun.statistics().tasks_waiting

    async def wait_begun(self) -> None:
        """Return when the shutdown has begun, and `topology_version` has changed."""
        await self._begun.wait()
