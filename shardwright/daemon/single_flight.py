"""Running a piece of work once for all concurrent callers."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import SERVED_CLIENT

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_CANCELLED_TEXT: Final = {
    ErrorCode.ShutdownInProgress: "the daemon is shutting down",
    ErrorCode.InterruptedDueToReplStateChange: "operation was interrupted",
}


class SingleFlight(Generic[Key, Value]):
    """Work by key in its owner's nursery, so that a cancelled caller does not cancel it for the others."""

    def __init__(self, nursery: trio.Nursery, *, cancelled: ErrorCode = ErrorCode.ShutdownInProgress) -> None:
        """Create it without any work; callers get the error `cancelled` if the nursery is cancelled."""
        self._nursery = nursery
        self._cancelled = cancelled
        self._flights: dict[Key, _Flight[Value]] = {}

    @may_run_in_reactor
    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result, or raise the error, of ``work()`` or of the run for ``key`` already in progress."""
        # Before any await: a result that the caller has just failed to find may exist once it is in its own task.
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
        """Run work that starts after this call, so that it sees everything done before; otherwise as `run`."""
        earlier = self._flights.get(key)
        if earlier is not None:
            await in_own_task()
            await earlier.landed.wait()
        return await self.run(key, work)

    async def _fly(self, key: Key, flight: "_Flight[Value]", work: Callable[[], Awaitable[Value]]) -> None:
        SERVED_CLIENT.set(None)  # shared work must not wait for memory on behalf of one of its callers
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
    """Work in progress: ``values`` contains the result once there is one, since None is a result too."""

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.values: list[Value] = []
        self.error: Exception | None = None
