"""Operations that began in one stretch of time, counted so that their end can be waited for while others begin."""

import trio


class OperationGeneration:
    """The operations on one namespace between two calls of `NamespaceState.wait_earlier_operations`.

    Attributes:
        is_superseded: a range is about to come in that its reads are not to see, and do not hide: what they have not
            answered yet is read again.
    """

    __slots__ = ("_count", "_waiting", "_writers", "is_superseded")

    def __init__(self) -> None:
        self.is_superseded = False
        self._count = 0
        self._writers = 0
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def is_over(self) -> bool:
        """Whether none of them is under way."""
        return not self._count

    def enter(self, *, is_write: bool) -> None:
        """Count one in."""
        self._count += 1
        if is_write:
            self._writers += 1

    def exit(self, *, is_write: bool) -> None:
        """Count one out."""
        self._count -= 1
        if is_write:
            self._writers -= 1
        if self._waiting and not (self._count and self._writers):
            self._waiting.unpark_all()

    async def wait_over(self) -> None:
        """Return when none of them is under way."""
        while self._count:
            await self._waiting.park()

    async def wait_writes_over(self) -> None:
        """Return when none of them that writes is under way."""
        while self._writers:
            await self._waiting.park()
