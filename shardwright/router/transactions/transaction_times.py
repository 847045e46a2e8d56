"""How old a transaction is, and how much of that time its commands have taken, for ``$currentOp``."""

from datetime import UTC, datetime
from time import monotonic, time


class TransactionTimes:
    """The times of one transaction; taking them costs each command two looks at a clock.

    Attributes:
        started: the wall clock time at which it began, in seconds since 1970.
        commit_started: the wall clock time at which its commit began; None before that.
    """

    __slots__ = ("_active_seconds", "_active_since", "_began", "commit_started", "started")

    def __init__(self) -> None:
        self.started = time()
        self.commit_started: float | None = None
        self._began = monotonic()
        self._active_seconds = 0.0
        self._active_since: float | None = None

    def begin_command(self) -> None:
        """A command of it begins."""
        self._active_since = monotonic()

    def end_command(self) -> None:
        """The command has ended."""
        if self._active_since is not None:
            self._active_seconds += monotonic() - self._active_since
            self._active_since = None

    def begin_commit(self) -> None:
        """A commit begins."""
        self.commit_started = time()

    @property
    def open_seconds(self) -> float:
        """How long it has been open."""
        return monotonic() - self._began

    @property
    def active_seconds(self) -> float:
        """For how long one of its commands has been running."""
        since = self._active_since
        return self._active_seconds + (0.0 if since is None else monotonic() - since)


def iso_text(moment: float) -> str:
    """A wall clock time as ``$currentOp`` shows it."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
