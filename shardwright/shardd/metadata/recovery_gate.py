"""The gate that blocks operations until a new primary has recovered the unfinished work of earlier terms.

A migration that was about to commit may have given a range away. Until its critical section is restored, writes must
not run, and no refresh may admit reads. The gate opens when the persisted state has been read from the local mongod; it
waits for no other server.
"""

from collections.abc import Callable

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class RecoveryGate:
    """Closed from the start of the daemon or a step-down until the critical sections of earlier terms are recovered.

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
        """Open the gate: the components that begin a term before it have recovered."""
        self.open()

    def end_term(self) -> None:
        """Close the gate."""
        self.close()

    def open(self) -> None:
        """Open the gate, and wake all waiting operations."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Close the gate at the end of the term; operations that still wait fail."""
        self.is_open = False
        waiting, self._opened = self._opened, trio.Event()
        waiting.set()

    async def wait_open(self) -> None:
        """Return when the gate is open, or raise NotWritablePrimary if the local mongod is not primary (any more)."""
        while not self.is_open:
            if not self._is_primary():
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            await self._opened.wait()
