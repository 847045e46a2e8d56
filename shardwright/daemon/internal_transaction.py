"""Internal transactions of a daemon: attempts, repeated until one has been committed or cannot be.

As in MongoDB's internal transaction API, a transient failure is followed by an attempt with another number. A commit
with an unknown outcome is sent again. The daemon decides how to run the statements and how to send the commit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

ATTEMPTS_MAX: Final = 120
"""Limit for all attempts, and for all commits of one attempt, as for MongoDB's internal transactions."""

_PAUSE_SECONDS_FIRST: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 1.0

T = TypeVar("T")
C = TypeVar("C")


class Attempt(ABC, Generic[T, C]):
    """One transaction, with its transaction number."""

    @abstractmethod
    async def run_statements(self) -> T:
        """Run all statements.

        Raises:
            CommandError: one failed; labelled TransientTransactionError if another attempt may succeed.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Abort the transaction after a failure of its statements."""

    @abstractmethod
    async def abort_undecided(self) -> None:
        """Abort an abandoned transaction on the participants where its commit has not been decided."""

    @abstractmethod
    async def commit(self) -> C:
        """Commit the transaction.

        Raises:
            CommandError: it was aborted, labelled as in `run_statements`; or the outcome is unknown.
        """

    @abstractmethod
    def may_be_committed(self, error: CommandError) -> bool:
        """Whether the outcome of a failed commit is unknown, so that it must be sent again."""


async def run_attempts(begin: Callable[[int], Attempt[T, C]], numbers: Sequence[int]) -> tuple[T, C]:
    """Run a transaction and commit it; return the results of its statements and of its commit.

    Args:
        numbers: the ``txnNumber`` of each attempt, which limits their number.

    Raises:
        CommandError: a permanent failure, or the last one. It has no label TransientTransactionError, since the
            transaction is invisible to the client.
    """
    backoff = Backoff(_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX)
    for number in numbers:
        attempt = begin(number)
        try:
            return await _executed(attempt), await _committed(attempt)
        except CommandError as error:
            if number == numbers[-1] or TRANSIENT_TRANSACTION_ERROR not in error.labels:
                error.labels = tuple(label for label in error.labels if label != TRANSIENT_TRANSACTION_ERROR)
                raise
        await backoff.pause()
    raise AssertionError("unreachable")


async def _executed(attempt: Attempt[T, C]) -> T:
    try:
        return await attempt.run_statements()
    except CommandError:
        await attempt.abort()
        raise
    except (Exception, trio.Cancelled):
        with trio.CancelScope(shield=True):
            await attempt.abort()
        raise


async def _committed(attempt: Attempt[T, C]) -> C:
    """Commit, repeatedly while the outcome is unknown."""
    backoff = Backoff(_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX)
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        try:
            return await attempt.commit()
        except CommandError as error:
            if not attempts_left or not attempt.may_be_committed(error):
                raise
        except trio.Cancelled:
            # If the request did not arrive, the transaction would keep its documents until its lifetime is over.
            with trio.CancelScope(shield=True):
                await attempt.abort_undecided()
            raise
        await backoff.pause()
    raise AssertionError("unreachable")
