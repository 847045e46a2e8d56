"""Which term a task works for, so that what it asks of the mongod is not done for another one.

A task that began in one term may go on in a later one for a moment, until it is cancelled: the process may have been
stopped. What it knows belongs to its own term, and so must its writes. `daemon.sidecar.mongod` checks that for every
task that has said for which term it works; tasks that it starts work for the same one.
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
    """In the block, this task works for a term; with None, for no term in particular."""
    token = _TERM.set(term)
    try:
        yield
    finally:
        _TERM.reset(token)


def term_of_task() -> int | None:
    """The term that this task works for, None for no term in particular."""
    return _TERM.get()


def check_term(expected: int | None, found: int | None) -> None:
    """Refuse to go on in another term than the expected one.

    Raises:
        CommandError: InterruptedDueToReplStateChange.
    """
    if expected != found:
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")
