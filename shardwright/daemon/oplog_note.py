"""Writing notes into the oplog, which wait for a majority or obtain a new time.

mongod rejects a note (LockFailed) if it does not get the global lock within a millisecond. On config servers each
change of the catalog takes that lock, because ``applyOps`` with a precondition does. So notes often conflict with one.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes

SECONDS_MAX: Final = 10.0
"""Maximum time for retries of a note."""

_PAUSE_SECONDS: Final = 0.002
_PAUSE_SECONDS_MAX: Final = 0.1

_WAIT_FOR_MAJORITY: Final = {
    "appendOplogNote": 1,
    "data": {"msg": "wait for majority"},
    "writeConcern": {"w": "majority"},
}


async def append_oplog_note(
    run: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]], note: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a note, retrying while mongod's global lock is taken; return the reply.

    Args:
        run: runs a command on a database, and returns its reply.

    Raises:
        CommandError: LockFailed, the lock was taken for a long time; as ``run``.
        BackendError: as ``run``.
    """
    backoff, deadline = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX), trio.current_time() + SECONDS_MAX
    while True:
        try:
            return await run("admin", note)
        except CommandError as error:
            if error.code != ErrorCode.LockFailed or trio.current_time() >= deadline:
                raise
        await backoff.pause()


async def wait_for_majority(run: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Wait until a majority of the set has everything that its primary has now.

    Args:
        run: as `append_oplog_note`, on the primary.

    Raises:
        CommandError: WriteConcernFailed, the wait took too long; or as `append_oplog_note`.
        BackendError: as ``run``.
    """
    check_writes(await append_oplog_note(run, _WAIT_FOR_MAJORITY))
