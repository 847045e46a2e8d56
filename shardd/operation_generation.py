"""Operations that began in one stretch of time, counted so that their end can be waited for while others begin."""

import trio


class OperationGeneration:
    """The operations on one namespace between two calls of `NamespaceState.wait_earlier_operations`."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        self._count = 0
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def is_over(self) -> bool:
        """Whether none of them is under way."""
        return not self._count

    def enter(self) -> None:
        """Count one in."""
        self._count += 1

    def exit(self) -> None:
        """Count one out."""
        self._count -= 1
        if not self._count and self._waiting:
            self._waiting.unpark_all()

    async def wait_over(self) -> None:
        """Return when none of them is under way."""
        while self._count:
            await self._waiting.park()
