"""A critical section: the short time in which a namespace's placement changes and operations have to wait.

It blocks new writes first, so that those under way can drain while reads go on, and then new reads.
"""

from collections.abc import Mapping
from typing import Any

import trio


class CriticalSection:
    """One critical section of a namespace.

    Attributes:
        reason: what it is for; two sections with the same reason are the same.
        blocks_reads: whether it has come to its second phase.
    """

    __slots__ = ("_released", "blocks_reads", "reason")

    def __init__(self, reason: Mapping[str, Any]) -> None:
        self.reason = reason
        self.blocks_reads = False
        self._released = trio.Event()

    def blocks(self, *, is_write: bool) -> bool:
        """Whether an operation has to wait."""
        return is_write or self.blocks_reads

    async def wait_released(self) -> None:
        """Return once it is over."""
        await self._released.wait()

    def release(self) -> None:
        """It is over: those who wait look again."""
        self._released.set()
