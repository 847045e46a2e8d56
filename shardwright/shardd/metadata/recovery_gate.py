"""The gate at which operations wait while a new primary recovers the unfinished work of the last one.

A migration that was about to commit may have given a range away. Until its critical section is on again, writes must
not run, nor may metadata be refreshed by which reads would be admitted. The gate opens when the persisted state has
been read from the local mongod; it waits for no other server.
"""

from collections.abc import Callable

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class RecoveryGate:
    """Closed from step-down, and from the start of the daemon, until the next term's critical sections are recovered.

    Args:
        is_primary: returns whether the local mongod is primary.

    Attributes:
        is_open: whether this is a primary that has recovered.
    """

    __slots__ = ("_is_primary", "_opened", "is_open")

    def __init__(self, is_primary: Callable[[], bool]) -> None:
        self.is_open = False
        self._is_primary = is_primary
        self._opened = trio.Event()

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Open it: all components that begin a term before it have recovered."""
        self.open()

    def end_term(self) -> None:
        """Close it."""
        self.close()

    def open(self) -> None:
        """Open it, and wake all that wait."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Close it at the end of the term; operations that still wait fail."""
        self.is_open = False
        waiting, self._opened = self._opened, trio.Event()
        waiting.set()

    async def wait_open(self) -> None:
        """Return when it is open.

        Raises:
            CommandError: NotWritablePrimary, the local mongod is not primary, or no longer.
        """
        while not self.is_open:
            if not self._is_primary():
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            await self._opened.wait()
