"""The mongod behind a sidecar, and the daemon's own commands to it."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bson import encode

from shardwright.daemon.sidecar.term_fence import TermFence, UnansweredCommands, check_term, term_of_task
from shardwright.daemon.sidecar.user_write_block import BYPASS, GlobalLock
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.pool import Pool
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

REPLICATION_DATA: Final = "$replData"


class LocalMongod:
    """The local mongod's addresses, and a pool of connections for the daemon's own commands.

    Methods that access mongod raise BackendError if it does not answer.

    Args:
        present_term: returns the mongod's current term as primary; None if no task works for a term.

    Attributes:
        address: its address in its replica set's configuration (`SidecarOptions.mongod_address`).
        pool: the daemon's own connections; clients have separate ones (`daemon.sidecar.upstream`).
        fence: makes mongod refuse writes sent in an earlier term, if the daemon uses one.
        unanswered: commands of terms that mongod may still execute.
        global_lock: turns between changes that need mongod's global lock and clients' transactions.
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
        self._pools = pools
        self._present_term = present_term
        self.fence: TermFence | None = None
        self.unanswered = UnansweredCommands(self.pool)
        self.global_lock = GlobalLock()

    def pool_of_member(self, address: str) -> Pool:
        """Return the daemon's own connections to the mongod of a member of the set.

        Args:
            address: in the set's configuration. It may be a socket path, relative to the common directory of the
                members' sockets.
        """
        if address == self.address:
            return self.pool
        return self._pools[os.path.join(os.path.dirname(self.socket_path), address) if "/" in address else address]

    def number_writes_by(self, fence: TermFence) -> None:
        """Number the writes of a term by a fence from now on, so that mongod refuses them in any later term."""
        self.fence = fence

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply. It may write even if the writes of users are blocked.

        For a task that works for a term (`daemon.sidecar.term_fence`), the command runs in that term only. It is not
        sent if the term is over, and fails if its reply shows that it ran in another term.

        Raises:
            CommandError: the reply has ``ok: 0``; InterruptedDueToReplStateChange, the term is over.
        """
        term = term_of_task()
        if term is None:
            return await self.pool.command(db, {**command, BYPASS: True})
        reply = await self._command_of(term, db, command)
        metadata = reply.pop(REPLICATION_DATA, None)
        if metadata is not None:
            check_term(term, metadata["term"])
        return reply

    @may_run_in_reactor
    async def _command_of(self, term: int, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Check the term after all waiting is done, since the daemon may be paused during any wait; then send."""
        frame = op_msg(encode({**command, BYPASS: True, REPLICATION_DATA: 1, "$db": db}), request_id=next_request_id())
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
        """Check that the term for which this task works, if any, is the current one.

        Nothing is awaited between the last reading of the clock and the return.

        Raises:
            CommandError: InterruptedDueToReplStateChange, the term is over.
        """
        term = term_of_task()
        if term is not None:
            await in_own_task()
            assert self._present_term is not None
            check_term(term, await self._present_term())

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command; return its reply. If there is a fence, mongod refuses the write in another term.

        Raises:
            CommandError: the command failed, one of its items did, or its write concern could not be satisfied; as
                `command`.
        """
        return await (self.execute_write(db, command) if self.fence is None else self.fence.write(db, command))

    async def execute_write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command without a fence's number; errors as `write`."""
        reply = await self.command(db, command)
        check_writes(reply)
        return reply
