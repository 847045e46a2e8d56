"""The sessions that have run transactions here, each with its last one."""

from collections.abc import Container, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

import trio

from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.transaction_statistics import TransactionStatistics
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

IDLE_SECONDS_MAX: Final = 30 * 60.0
"""Like that of logical sessions. Shards abort transactions much earlier, after ``transactionLifetimeLimitSeconds``."""


class ClientDescription(NamedTuple):
    """A client, which may have gone since.

    Attributes:
        id: the number of its connection.
        peer: its address.
        metadata: how it introduced itself.
    """

    id: int
    peer: str
    metadata: Mapping[str, Any] | None


class RouterSession:
    """A session, which runs one operation of a transaction at a time.

    Attributes:
        transaction: the last one; None before the first.
        client: the client that began it, if known.
        last_used: when it was last checked in, in seconds of `time.monotonic`.
    """

    __slots__ = ("_is_checked_out", "_released", "client", "last_used", "transaction", "waiting")

    def __init__(self) -> None:
        self.transaction: RouterTransaction | None = None
        self.client: ClientDescription | None = None
        self.last_used = monotonic()
        self.waiting = 0
        self._is_checked_out = False
        self._released: trio.Event | None = None

    @may_run_in_reactor
    async def check_out(self) -> None:
        """Wait until no other operation uses the session, and use it."""
        if self._is_checked_out:
            await self._wait_released()
        self._is_checked_out = True
        if self.transaction is not None:
            self.transaction.times.begin_command()

    def check_in(self) -> None:
        """The operation that uses the session has ended."""
        self.last_used = monotonic()
        if self.transaction is not None:
            self.transaction.times.end_command()
        self._is_checked_out = False
        if self._released is not None:
            self._released.set()
            self._released = None

    @may_run_in_reactor
    async def _wait_released(self) -> None:
        self.waiting += 1
        try:
            await in_own_task()
            while self._is_checked_out:
                if self._released is None:
                    self._released = trio.Event()
                await self._released.wait()
        finally:
            self.waiting -= 1

    @property
    def is_active(self) -> bool:
        """Whether an operation uses it."""
        return self._is_checked_out

    @property
    def is_open(self) -> bool:
        """Whether its transaction may go on."""
        return self.transaction is not None and self.transaction.phase is Phase.IN_PROGRESS

    @property
    def is_idle(self) -> bool:
        """Whether no operation uses it, or waits for it."""
        return not (self._is_checked_out or self.waiting)

    @property
    def is_over(self) -> bool:
        """Whether nothing is known of it that has not ended on the shards as well."""
        return self.is_idle and (self.transaction is None or self.transaction.phase in (Phase.COMMITTED, Phase.ABORTED))


class TransactionTable:
    """The sessions by their ids (`SessionId.key`), the one that has been idle for longest first.

    Args:
        sessions_max: how many there may be.

    Attributes:
        statistics: of all transactions.
    """

    def __init__(self, sessions_max: int) -> None:
        self.statistics = TransactionStatistics()
        self._sessions_max = sessions_max
        self._sessions: dict[bytes, RouterSession] = {}

    @may_run_in_reactor
    async def check_out(self, session_id: bytes) -> RouterSession:
        """The session, for the use of one operation; it has to check it in.

        Raises:
            CommandError: TooManyLogicalSessions.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            self._make_room()
            session = RouterSession()
        self._sessions[session_id] = session
        await session.check_out()
        return session

    def find(self, session_id: bytes) -> RouterSession | None:
        """A session, if it has run a transaction here."""
        return self._sessions.get(session_id)

    @property
    def sessions(self) -> dict[bytes, RouterSession]:
        """All of them, by id."""
        return self._sessions

    def open_in(self, sessions: Container[bytes] | None) -> list[RouterTransaction]:
        """The open transactions of some sessions (`SessionId.key`), or of all."""
        return [
            session.transaction
            for session_id, session in self._sessions.items()
            if session.transaction is not None and session.is_open and (sessions is None or session_id in sessions)
        ]

    def sessions_with_open_ones(self) -> set[bytes]:
        """The sessions that have an open transaction."""
        return {session_id for session_id, session in self._sessions.items() if session.is_open}

    def document(self) -> dict[str, Any]:
        """The section ``transactions`` of ``serverStatus``."""
        open_ones = [session for session in self._sessions.values() if session.is_open]
        active = sum(session.is_active for session in open_ones)
        return self.statistics.document(active, len(open_ones) - active)

    def _make_room(self) -> None:
        """Forget sessions that have been idle for too long, and one more if there are too many."""
        limit = monotonic() - IDLE_SECONDS_MAX
        while self._sessions:
            oldest = next(iter(self._sessions))
            session = self._sessions[oldest]
            is_expired = session.is_idle and session.last_used < limit
            if not is_expired and len(self._sessions) < self._sessions_max:
                return
            if not is_expired and not session.is_over:
                raise CommandError(
                    ErrorCode.TooManyLogicalSessions, "Unable to add session: too many transactions are open"
                )
            del self._sessions[oldest]
