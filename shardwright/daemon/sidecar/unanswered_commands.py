"""What the daemon has sent in one term and mongod has not answered: it must be over before a later term begins.

A task that is cancelled at the end of its term leaves its command behind, and closes the connection. But mongod reads
what has arrived on a connection before it finds that it was closed. So a term waits until mongod has given up every
connection on which a command of an earlier one was left unanswered: then it has read, and executed or refused, all
that had been sent there.
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
"""How often mongod is asked, which gives no sign when a connection has gone."""


class UnansweredCommands:
    """The connections on which a command of a term waits for its answer, or has been left without one.

    Args:
        pool: of connections to the mongod.
    """

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._terms: dict[tuple[str, int], int] = {}

    @contextmanager
    def noted(self, connection: Connection, term: int) -> Iterator[None]:
        """In the block a command is sent and answered. It counts as unanswered if the block ends with an error."""
        key = _process_of(connection), connection.hello["connectionId"]
        self._terms[key] = term
        yield
        del self._terms[key]

    async def wait_earlier_over(self, term: int) -> None:
        """Return when mongod has nothing to execute any more that was sent in an earlier term. What it does is killed.

        Raises:
            CommandError: mongod refuses to tell.
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
    """Which process of mongod it leads to: numbers of connections begin again with each."""
    return str(connection.hello["topologyVersion"]["processId"])


async def _connections(connection: Connection, numbers: list[int]) -> dict[int, Any]:
    """Which connections mongod still has, each with the id of its operation, None if it has none."""
    everything = {"$currentOp": {"allUsers": True, "idleConnections": True, "localOps": True}}
    pipeline = [everything, {"$match": {"connectionId": {"$in": numbers}}}]
    reply = await connection.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 10_000}})
    return {each["connectionId"]: each.get("opid") for each in reply["cursor"]["firstBatch"]}
