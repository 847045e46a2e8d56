"""The mongod that the sidecar stands in front of."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bson import encode

from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.daemon.sidecar.term_scope import check_term, term_of_task
from shardwright.daemon.sidecar.unanswered_commands import UnansweredCommands
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

REPLICATION_DATA: Final = "$replData"


class LocalMongod:
    """Where the local mongod is, and a pool of connections for what the daemon itself asks of it.

    Args:
        pools: the daemon's connection pools.
        socket_path: see below.
        address: see below.
        present_term: finds out in which term the mongod is primary now; None where no task works for a term.

    Attributes:
        socket_path: its UNIX socket.
        address: ``host:port`` under which its replica set's configuration knows it.
        pool: the daemon's own connections; clients have theirs (`daemon.sidecar.upstream`).
        fence: makes mongod refuse what was sent in an earlier term, where the daemon begins its terms with it.
        unanswered: commands of terms that mongod may still have to execute.
    """

    def __init__(
        self,
        pools: ConnectionPools,
        socket_path: str,
        address: str,
        present_term: Callable[[], Awaitable[int | None]] | None = None,
    ) -> None:
        self.socket_path = socket_path
        self.address = address
        self.pool = pools[socket_path]
        self._present_term = present_term
        self.fence: TermFence | None = None
        self.unanswered = UnansweredCommands(self.pool)

    def number_writes_by(self, fence: TermFence) -> None:
        """From now on writes of a term are numbered by a fence, and refused by mongod in any later term."""
        self.fence = fence

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply.

        A task that works for a term (`daemon.sidecar.term_scope`) has it run in no other one: a command is not sent
        when the term is over, and one that turns out to have run in another term has failed.

        Raises:
            CommandError: the reply says ``ok: 0``; InterruptedDueToReplStateChange, the term is over.
            BackendError: mongod does not answer.
        """
        term = term_of_task()
        if term is None:
            return await self.pool.command(db, command)
        reply = await self._command_of(term, db, command)
        metadata = reply.pop(REPLICATION_DATA, None)
        if metadata is not None:
            check_term(term, metadata["term"])
        return reply

    @may_run_in_reactor
    async def _command_of(self, term: int, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command once nothing has to be waited for any more: the daemon may sleep in every wait."""
        frame = op_msg(encode({**command, REPLICATION_DATA: 1, "$db": db}), request_id=next_request_id())
        connection = await self.pool.borrow()
        try:
            await self.check_term_before()
            with self.unanswered.noted(connection, term):
                answer = await connection.exchange(frame)
        finally:
            self.pool.give_back(connection)
        reply = decode_reply(answer)
        if not reply.get("ok"):
            raise CommandError.from_reply(reply)
        return reply

    @may_run_in_reactor
    async def check_term_before(self) -> None:
        """Find out whether the term that this task works for, if it works for one, is the present one.

        It was so when this returns: nothing is waited for after the last look at the clock.

        Raises:
            CommandError: InterruptedDueToReplStateChange, it is not.
            BackendError: mongod does not answer.
        """
        term = term_of_task()
        if term is not None:
            await in_own_task()
            assert self._present_term is not None
            check_term(term, await self._present_term())

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command; returns its reply. Mongod refuses it in another term if there is a fence.

        Raises:
            CommandError: the command failed, one of its items did, or its write concern could not be satisfied; as
                `command`.
            BackendError: mongod does not answer.
        """
        return await (self.execute_write(db, command) if self.fence is None else self.fence.write(db, command))

    async def execute_write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """As `write`, just as the command is.

        Raises:
            CommandError: as `write`.
            BackendError: as `write`.
        """
        reply = await self.command(db, command)
        for failure in (*reply.get("writeErrors", ()), *filter(None, (reply.get("writeConcernError"),))):
            raise CommandError.from_reply(failure)
        return reply
