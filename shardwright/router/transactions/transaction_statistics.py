"""Counts of transactions since the router started, for ``serverStatus``."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from bson.int64 import Int64

from shardwright.router.transactions.commit_path import CommitPath
from shardwright.router.transactions.router_transaction import RouterTransaction

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
    """The counts.

    Attributes:
        started: transactions.
        committed: those that were committed.
        aborts: those that were aborted, by the cause.
        participants: shards that joined them.
        participants_at_commit: those when a commit was begun.
        requests: that were sent to shards in them.
    """

    started: int = 0
    committed: int = 0
    aborts: Counter[str] = field(default_factory=Counter)
    participants: int = 0
    participants_at_commit: int = 0
    requests: int = 0
    _commits: dict[str, _Commits] = field(default_factory=_no_commits)

    @contextmanager
    def statement(self, transaction: RouterTransaction) -> Iterator[None]:
        """Count what a statement, run in the block, adds to its transaction."""
        participants, requests = len(transaction.participants), transaction.requests
        try:
            yield
        finally:
            self.participants += max(0, len(transaction.participants) - participants)
            self.requests += transaction.requests - requests

    @contextmanager
    def commit(self, transaction: RouterTransaction | None) -> Iterator[None]:
        """Count a commit, run in the block; one of a transaction of another router if none is given.

        One that fails for lack of answers is none of the kinds that are counted.
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
        """The section ``transactions``, with mongos's fields.

        Args:
            active: transactions in which a command is running.
            inactive: other open ones.
        """
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
