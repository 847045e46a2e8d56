"""A critical section: the short time in which a namespace's placement changes and operations have to wait.

It first blocks new writes, so that those under way can drain while reads go on, and then new reads as well.
"""

from collections.abc import Mapping
from typing import Any

import trio


class CriticalSection:
    """A critical section of a namespace or a database.

    Attributes:
        reason: its purpose; two sections with the same reason are the same.
        blocks_reads: whether it is in its second phase.
        held_writes: how many writes have had to wait for it.
    """

    __slots__ = ("_released", "blocks_reads", "held_writes", "reason")

    def __init__(self, reason: Mapping[str, Any]) -> None:
        self.reason = reason
        self.blocks_reads = False
        self.held_writes = 0
        self._released = trio.Event()

    def blocks(self, *, is_write: bool) -> bool:
        """Whether an operation has to wait for it."""
        return is_write or self.blocks_reads

    async def wait_released(self) -> None:
        """Return when it is over."""
        await self._released.wait()

    def release(self) -> None:
        """End it, and wake the operations that wait for it; they check again."""
        self._released.set()
