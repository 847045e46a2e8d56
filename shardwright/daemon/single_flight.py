"""One run of a piece of work for all who ask for it at the same time."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import SERVED_CLIENT

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_CANCELLED_TEXT: Final = {
    ErrorCode.ShutdownInProgress: "the daemon is shutting down",
    ErrorCode.InterruptedDueToReplStateChange: "operation was interrupted",
}


class SingleFlight(Generic[Key, Value]):
    """Runs work by key, in a nursery of its owner, so that a caller who gives up does not take it from the others."""

    def __init__(self, nursery: trio.Nursery, *, cancelled: ErrorCode = ErrorCode.ShutdownInProgress) -> None:
        """Nothing is under way yet.

        Args:
            nursery: where work runs.
            cancelled: what callers get when it is cancelled: for a nursery of a term InterruptedDueToReplStateChange.
        """
        self._nursery = nursery
        self._cancelled = cancelled
        self._flights: dict[Key, _Flight[Value]] = {}

    @may_run_in_reactor
    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """The result of ``work()``, or of the run for ``key`` that is already under way; its error is raised to all.

        Raises:
            CommandError: the owner's nursery was cancelled before the work was done.
        """
        # Before anything is waited for: what a caller just looked for in vain may be there once it is in its own task.
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._fly, key, flight, work)
        await in_own_task()
        await flight.landed.wait()
        if flight.error is not None:
            raise flight.error
        return flight.values[0]

    @may_run_in_reactor
    async def run_after_now(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """As `run`, but with work that begins after this call, so that it sees everything done before.

        Raises:
            CommandError: as `run`.
        """
        earlier = self._flights.get(key)
        if earlier is not None:
            await in_own_task()
            await earlier.landed.wait()
        return await self.run(key, work)

    async def _fly(self, key: Key, flight: "_Flight[Value]", work: Callable[[], Awaitable[Value]]) -> None:
        SERVED_CLIENT.set(None)  # what many wait for does not wait until there is room for one of them
        try:
            flight.values.append(await work())
        except Exception as error:
            flight.error = error
        except BaseException:
            flight.error = CommandError(self._cancelled, _CANCELLED_TEXT[self._cancelled])
            raise
        finally:
            del self._flights[key]
            flight.landed.set()


class _Flight(Generic[Value]):
    """Work under way: ``values`` holds its result once it has one, since None is a result too."""

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.values: list[Value] = []
        self.error: Exception | None = None
