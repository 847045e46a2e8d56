"""Changes for which mongod takes its global lock: ``setUserWriteBlockMode``, and ``applyOps`` that creates or drops a
collection, or is atomic.

Such a change waits for all open transactions, and everything else waits for it. So it is given up after a moment and
tried again later. It never waits without a limit: among what waits for it may be the decision about a prepared
transaction that this set coordinates, and that transaction stays open until then.
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

Attempt = Callable[[Mapping[str, int]], Awaitable[None]]


async def between_transactions(attempt: Attempt, *, lock_ms: int = _LOCK_MS) -> None:
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
            await attempt({"maxTimeMS": lock_ms})
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise
        else:
            return
        await backoff.pause()
        if trio.current_time() >= patient_until:
            lock_ms = min(2 * lock_ms, _LOCK_MS_MAX)
