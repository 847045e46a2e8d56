"""Sessions that have run transactions here, each with its last one, and the counts for ``serverStatus``."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

import trio
from bson.int64 import Int64

from shardwright.router.transactions.router_transaction import CommitPath, Phase, RouterTransaction
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

RECOVERY: Final = "recoverWithToken"


@dataclass(slots=True)
class _Commits:
    initiated: int = 0
    successful: int = 0
    seconds: float = 0.0


def _no_commits() -> dict[str, _Commits]:
    return {name: _Commits() for name in (*(path.value for path in CommitPath), RECOVERY)}


@dataclass(slots=True)
class TransactionStatistics:
    """Counts of transactions since the router started, for ``serverStatus``.

    Attributes:
        aborts: aborted transactions by cause.
        participants: the shards that joined, summed over all transactions.
        participants_at_commit: the participants at the beginning of commits.
        requests: requests sent to shards in transactions.
    """

    started: int = 0
    committed: int = 0
    aborts: Counter[str] = field(default_factory=Counter)
    participants: int = 0
    participants_at_commit: int = 0
    requests: int = 0
    _commits: dict[str, _Commits] = field(default_factory=_no_commits)

    def note_statement(self, transaction: RouterTransaction, participants: int, requests: int) -> None:
        """Count what a statement has added to its transaction, which had so many participants and requests before."""
        self.participants += max(0, len(transaction.participants) - participants)
        self.requests += transaction.requests - requests

    @contextmanager
    def commit(self, transaction: RouterTransaction | None) -> Iterator[None]:
        """Count a commit, run in the block; None is a recovery of another router's transaction.

        A commit that fails for lack of answers has no commit type and is not counted.
        """
        if transaction is not None and transaction.lacks_answers:
            yield
            return
        began = perf_counter()
        name = RECOVERY if transaction is None else transaction.plan_commit().path.value
        commits = self._commits[name]
        commits.initiated += 1
        if transaction is not None:
            self.participants_at_commit += len(transaction.participants)
        yield
        commits.successful += 1
        commits.seconds += perf_counter() - began
        self.committed += 1

    def document(self, active: int, inactive: int) -> dict[str, Any]:
        """Build the section ``transactions`` with mongos's fields; inactive transactions run no command now."""
        return {
            "currentOpen": Int64(active + inactive),
            "currentActive": Int64(active),
            "currentInactive": Int64(inactive),
            "totalStarted": Int64(self.started),
            "totalCommitted": Int64(self.committed),
            "totalAborted": Int64(self.aborts.total()),
            "abortCause": {cause: Int64(count) for cause, count in sorted(self.aborts.items())},
            "totalContactedParticipants": Int64(self.participants),
            "totalParticipantsAtCommit": Int64(self.participants_at_commit),
            "totalRequestsTargeted": Int64(self.requests),
            "commitTypes": {
                name: {
                    "initiated": Int64(commits.initiated),
                    "successful": Int64(commits.successful),
                    "successfulDurationMicros": Int64(commits.seconds * 1e6),
                }
                for name, commits in self._commits.items()
            },
        }


IDLE_SECONDS_MAX: Final = 30 * 60.0
"""The timeout of logical sessions. Shards abort transactions earlier, after ``transactionLifetimeLimitSeconds``."""


class ClientDescription(NamedTuple):
    """A client, which may have disconnected since; ``id`` is the number of its connection."""

    id: int
    peer: str
    metadata: Mapping[str, Any] | None


class RouterSession:
    """A session, which runs one operation of a transaction at a time.

    Attributes:
        client: the client that began the last transaction, if known.
        last_used: the time of its last check-in, in seconds of `time.monotonic`.
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
        """Wait until the session is free, and take it."""
        if self._is_checked_out:
            await self._wait_released()
        self.check_out_now()

    def check_out_now(self) -> None:
        """Take the session; the caller guarantees that it is free."""
        self._is_checked_out = True
        if self.transaction is not None:
            self.transaction.times.begin_command()

    def check_in(self) -> None:
        """Release the session after an operation."""
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
        """Whether its transaction is in progress."""
        return self.transaction is not None and self.transaction.phase is Phase.IN_PROGRESS

    @property
    def is_idle(self) -> bool:
        """Whether the session is neither used nor waited for."""
        return not (self._is_checked_out or self.waiting)

    @property
    def is_over(self) -> bool:
        """Whether it can be discarded because its transaction has ended on the shards too."""
        return self.is_idle and (self.transaction is None or self.transaction.phase in (Phase.COMMITTED, Phase.ABORTED))


class TransactionTable:
    """The sessions by their ids (`SessionId.key`), the least recently used first."""

    def __init__(self, sessions_max: int) -> None:
        self.statistics = TransactionStatistics()
        self._sessions_max = sessions_max
        self._sessions: dict[bytes, RouterSession] = {}

    @may_run_in_reactor
    async def check_out(self, session_id: bytes) -> RouterSession:
        """Check a session out for one operation, which has to check it in; raises TooManyLogicalSessions."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            self._make_room()
            session = RouterSession()
        self._sessions[session_id] = session
        await session.check_out()
        return session

    def check_out_now(self, session_id: bytes) -> None:
        """Check out a known session; the caller guarantees that it is free."""
        session = self._sessions[session_id] = self._sessions.pop(session_id)
        session.check_out_now()

    def find(self, session_id: bytes) -> RouterSession | None:
        """Return a session that has run a transaction here, or None."""
        return self._sessions.get(session_id)

    @property
    def sessions(self) -> dict[bytes, RouterSession]:
        """All sessions by id."""
        return self._sessions

    def open_in(self, sessions: Container[bytes] | None) -> list[RouterTransaction]:
        """Return the open transactions of the given sessions (`SessionId.key`), or of all."""
        return [
            session.transaction
            for session_id, session in self._sessions.items()
            if session.transaction is not None and session.is_open and (sessions is None or session_id in sessions)
        ]

    def sessions_with_open_ones(self) -> set[bytes]:
        """Return the sessions that have an open transaction."""
        return {session_id for session_id, session in self._sessions.items() if session.is_open}

    def document(self) -> dict[str, Any]:
        """Build the section ``transactions`` of ``serverStatus``."""
        open_ones = [session for session in self._sessions.values() if session.is_open]
        active = sum(session.is_active for session in open_ones)
        return self.statistics.document(active, len(open_ones) - active)

    def _make_room(self) -> None:
        """Discard sessions that were idle for too long, and one more if the table is full."""
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
