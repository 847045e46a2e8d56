"""The gossiped times in the daemon's own replies."""

from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.clock import VectorTime
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError


async def gossip(mongod: LocalMongod, known: int = 0) -> dict[str, Any]:
    """Return mongod's current ``$clusterTime`` and ``operationTime``.

    Args:
        known: a packed cluster time to advance mongod's clock to first.

    Raises:
        CommandError: InterruptedDueToReplStateChange, the task's term is over, so its work may be rolled back.
    """
    try:
        pong = await mongod.command("admin", {"ping": 1, **VectorTime(known).gossip()})
    except (BackendError, CommandError) as error:
        if isinstance(error, CommandError) and error.code == ErrorCode.InterruptedDueToReplStateChange:
            raise
        return {}  # stepping down or unreachable; the command has been executed, and its reply matters more
    return {field: pong[field] for field in ("$clusterTime", "operationTime") if field in pong}
