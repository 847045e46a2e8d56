"""The gate before which operations wait while a new primary finds out what the last one has left under way.

A migration that was about to commit may have given a range away. Until its critical section is on again, nobody may
write, nor may anything be learnt of placement by which reads would be let in. The gate opens when what is persisted has
been read from the local mongod; it waits for no other server.
"""

from collections.abc import Callable

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class RecoveryGate:
    """Closed from step-down, and from the start of the daemon, until the next term's recovery has begun.

    Args:
        is_primary: whether the local mongod is primary.

    Attributes:
        is_open: whether this is a primary that has read what there is to recover.
    """

    __slots__ = ("_is_primary", "_opened", "is_open")

    def __init__(self, is_primary: Callable[[], bool]) -> None:
        self.is_open = False
        self._is_primary = is_primary
        self._opened = trio.Event()

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """All that comes before in the order of a term has been recovered."""
        self.open()

    def end_term(self) -> None:
        """Close it."""
        self.close()

    def open(self) -> None:
        """Let operations in."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """The term is over; those who still wait get an error."""
        self.is_open = False
        waiting, self._opened = self._opened, trio.Event()
        waiting.set()

    async def wait_open(self) -> None:
        """Return once operations of a primary may go on.

        Raises:
            CommandError: NotWritablePrimary, this is none, or none any more.
        """
        while not self.is_open:
            if not self._is_primary():
                raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
            await self._opened.wait()
