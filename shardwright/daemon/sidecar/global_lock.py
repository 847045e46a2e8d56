"""Changes for which mongod takes its global lock: ``setUserWriteBlockMode``, and ``applyOps`` that creates or drops a
collection, or is atomic.

Such a change waits for all open transactions, and everything else waits for it. So it is given up after a moment and
tried again later. It never waits without a limit: among what waits for it may be a write by which this set coordinates
the commit of a transaction, and that transaction stays open until then.

Where transactions follow each other all the time, one is open at any moment. So an attempt first holds up those that
are about to begin, until the others have ended.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_LOCK_MS: Final = 100
"""How long others may have to wait for one attempt."""

_LOCK_MS_MAX: Final = 5_000
"""How long they may have to wait for one attempt when there is no more patience; it doubles each time until then."""

_PATIENCE_SECONDS: Final = 60.0
"""How long to be content with short attempts, as long as a transaction may be open by default."""

_TURN_SECONDS_MAX: Final = 0.5
"""How long an attempt waits for open transactions before it asks for the lock, and new ones wait for an attempt."""

Attempt = Callable[[Mapping[str, int]], Awaitable[None]]


class GlobalLock:
    """The global lock of one mongod: its daemon's changes that need it, and clients' transactions take turns."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._attempts = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def between_transactions(self, attempt: Attempt, *, lock_ms: int = _LOCK_MS) -> None:
        """Make a change when no transaction is open, without making others wait long for that.

        Args:
            attempt: makes the change, unless it has been made; it is given ``maxTimeMS``, to be added to the command.
            lock_ms: the limit for the first attempts.

        Raises:
            CommandError: any error of the attempt but MaxTimeMSExpired.
        """
        patient_until = trio.current_time() + _PATIENCE_SECONDS
        backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
        while True:
            try:
                await self._try_alone(attempt, lock_ms)
            except CommandError as error:
                if error.code != ErrorCode.MaxTimeMSExpired:
                    raise
            else:
                return
            await backoff.pause()
            if trio.current_time() >= patient_until:
                lock_ms = min(2 * lock_ms, _LOCK_MS_MAX)

    @property
    def is_wanted(self) -> bool:
        """Whether a change is being tried, so that new transactions should wait."""
        return self._attempts > 0

    async def wait_turn(self) -> None:
        """Return when a transaction may begin, which is soon in any case."""
        with trio.move_on_after(_TURN_SECONDS_MAX):
            while self.is_wanted:
                await self._changed.park()

    def begin(self, transaction: object) -> None:
        """Note that a transaction begins on this mongod."""
        self._open.add(transaction)

    def end(self, transaction: object) -> None:
        """Note that a transaction has ended, as far as is known; may be repeated."""
        self._open.discard(transaction)
        self._changed.unpark_all()

    async def _try_alone(self, attempt: Attempt, lock_ms: int) -> None:
        self._attempts += 1
        try:
            with trio.move_on_after(_TURN_SECONDS_MAX):
                while self._open:
                    await self._changed.park()
            await attempt({"maxTimeMS": lock_ms})
        finally:
            self._attempts -= 1
            self._changed.unpark_all()
