"""The times that replies of the daemon itself carry."""

from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError


async def gossip(mongod: LocalMongod) -> dict[str, Any]:
    """The times that tell clients up to where the mongod has come.

    Raises:
        CommandError: InterruptedDueToReplStateChange, the term for which this task works is over: what it has done may
            not last.
    """
    try:
        pong = await mongod.command("admin", {"ping": 1})
    except (BackendError, CommandError) as error:
        if isinstance(error, CommandError) and error.code == ErrorCode.InterruptedDueToReplStateChange:
            raise
        return {}  # stepping down or gone: the command has been done, and its answer matters more
    return {field: pong[field] for field in ("$clusterTime", "operationTime") if field in pong}
