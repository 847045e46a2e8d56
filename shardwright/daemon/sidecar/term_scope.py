"""The term for which a task works, so that its commands to the mongod are not executed in another term.

A task that was started in one term may continue for a moment in a later one, until it is cancelled, because the process
may have been paused. Its state belongs to its own term, and so must its writes. `daemon.sidecar.mongod` checks that for
every task that has declared its term; child tasks inherit it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_TERM: Final[ContextVar[int | None]] = ContextVar("term", default=None)


@contextmanager
def working_for(term: int | None) -> Iterator[None]:
    """In the block, this task works for a term; None means for no particular term."""
    token = _TERM.set(term)
    try:
        yield
    finally:
        _TERM.reset(token)


def term_of_task() -> int | None:
    """The term for which this task works; None for no particular term."""
    return _TERM.get()


def check_term(expected: int | None, found: int | None) -> None:
    """Check that the expected term is still the current one.

    Raises:
        CommandError: InterruptedDueToReplStateChange.
    """
    if expected != found:
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")
