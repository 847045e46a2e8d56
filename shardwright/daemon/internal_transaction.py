"""Transactions of a daemon itself: attempts, repeated until one has been committed or cannot be.

As in MongoDB's internal transaction API, an attempt that failed for a passing reason is followed by one with another
number, and a commit whose outcome is not known by the same commit. How statements are run and how the commit is sent
is up to the daemon.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

ATTEMPTS_MAX: Final = 120
"""As MongoDB's limit for its own transactions; of all attempts, and of all commits of one attempt."""

_PAUSE_SECONDS_FIRST: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 1.0

T = TypeVar("T")
C = TypeVar("C")


class Attempt(ABC, Generic[T, C]):
    """One transaction, with a number of its own."""

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
            CommandError: it was aborted, labelled as above; or the outcome is unknown.
        """

    @abstractmethod
    def may_be_committed(self, error: CommandError) -> bool:
        """Whether the outcome of a commit that failed is unknown, so that it is to be sent again."""


async def run_attempts(begin: Callable[[int], Attempt[T, C]], numbers: Sequence[int]) -> tuple[T, C]:
    """Run a transaction and commit it; returns the results of its statements and of its commit.

    Args:
        begin: makes an attempt with a number.
        numbers: the ``txnNumber`` of each attempt. There must be no more than these.

    Raises:
        CommandError: a failure that does not pass; or the last one. It has no label TransientTransactionError, since
            the client knows nothing of the transaction.
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
    """Commit, again and again as long as the outcome is unknown."""
    backoff = Backoff(_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX)
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        try:
            return await attempt.commit()
        except CommandError as error:
            if not attempts_left or not attempt.may_be_committed(error):
                raise
        except trio.Cancelled:
            # Where the request did not arrive, the transaction would keep its documents until its lifetime is over.
            with trio.CancelScope(shield=True):
                await attempt.abort_undecided()
            raise
        await backoff.pause()
    raise AssertionError("unreachable")
