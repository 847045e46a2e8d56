"""Changes for which mongod takes its global lock: ``applyOps`` that creates or drops a collection.

Such a change waits for all open transactions, and everything else waits for it. So it is given up after a moment and
tried again later.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_LOCK_MS_MAX: Final = 100
"""How long others may have to wait for one attempt."""

_PATIENCE_SECONDS: Final = 60.0
"""How long to avoid that, as long as a transaction may be open by default. If there has always been another one, it is
not to be avoided."""

Attempt = Callable[[Mapping[str, int]], Awaitable[None]]


async def between_transactions(attempt: Attempt) -> None:
    """Make a change when no transaction is open, without making others wait long for that.

    Args:
        attempt: makes the change, unless it has been made; it is given ``maxTimeMS``, to be added to the command.

    Raises:
        CommandError: any error of the attempt but MaxTimeMSExpired.
    """
    patient_until = trio.current_time() + _PATIENCE_SECONDS
    backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
    while trio.current_time() < patient_until:
        try:
            await attempt({"maxTimeMS": _LOCK_MS_MAX})
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise
        else:
            return
        await backoff.pause()
    await attempt({})
