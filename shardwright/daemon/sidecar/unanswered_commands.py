"""Commands that the daemon sent in one term and mongod has not answered; they must end before a later term begins.

A task that is cancelled at the end of its term abandons its command and closes the connection. But mongod reads what
has arrived on a connection before it notices that it was closed. So a term waits until mongod has closed every
connection on which a command of an earlier term was left unanswered: then mongod has read, and executed or refused,
everything sent there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import Connection

if TYPE_CHECKING:
    from shardwright.wire.transport.pool import Pool

logger = get_logger("daemon.sidecar.terms")

_POLL_SECONDS: Final = 0.02
"""The polling interval; mongod does not report when it has closed a connection."""


class UnansweredCommands:
    """The connections on which a command of a term waits for its reply, or was left unanswered.

    Args:
        pool: connections to the mongod.
    """

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._terms: dict[tuple[str, int], int] = {}

    @contextmanager
    def noted(self, connection: Connection, term: int) -> Iterator[None]:
        """Record a command that is sent and answered in the block; if the block fails, it counts as unanswered."""
        key = _process_of(connection), connection.hello["connectionId"]
        self._terms[key] = term
        yield
        del self._terms[key]

    async def wait_earlier_over(self, term: int) -> None:
        """Kill commands of earlier terms, and wait until mongod cannot execute any more of them.

        Raises:
            CommandError: mongod refuses to list its operations.
            BackendError: it does not answer.
        """
        while earlier := {key for key, sent_in in self._terms.items() if sent_in < term}:
            connection = await self._pool.borrow()
            try:
                process = _process_of(connection)
                open_now = await _connections(connection, [number for _, number in earlier])
                for key in earlier:
                    if key[0] != process or key[1] not in open_now:
                        del self._terms[key]
                for operation_id in filter(None, open_now.values()):
                    await connection.command("admin", {"killOp": 1, "op": operation_id})
            finally:
                self._pool.give_back(connection)
            if open_now:
                logger.info("Waiting for commands of an earlier term", connections=sorted(open_now))
                await trio.sleep(_POLL_SECONDS)


def _process_of(connection: Connection) -> str:
    """Identifies the mongod process of a connection, since connection numbers start again with each process."""
    return str(connection.hello["topologyVersion"]["processId"])


async def _connections(connection: Connection, numbers: list[int]) -> dict[int, Any]:
    """The connections that mongod still has, each with the id of its operation or None."""
    everything = {"$currentOp": {"allUsers": True, "idleConnections": True, "localOps": True}}
    pipeline = [everything, {"$match": {"connectionId": {"$in": numbers}}}]
    reply = await connection.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 10_000}})
    return {each["connectionId"]: each.get("opid") for each in reply["cursor"]["firstBatch"]}
