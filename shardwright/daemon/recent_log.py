"""The newest lines of the log, kept in memory for the ``getLog`` command."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

LINES_MAX: Final = 1024
LOG_NAMES: Final = ("global", "startupWarnings")
"""The names listed by ``getLog: "*"``."""


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """The answer to ``getLog``: the total number of lines so far, and the newest ones, oldest first."""

    total_lines_written: int
    lines: tuple[str, ...]


class RecentLog:
    """A ring buffer of lines; there are no warnings at startup."""

    __slots__ = ("_lines", "_total")

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._total = 0

    def add(self, line: str) -> None:
        """Add a line of the log."""
        self._total += 1
        self._lines.append(line)

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.clear()

    def excerpt(self, name: str) -> LogExcerpt:
        """The log of one of the `LOG_NAMES`.

        Raises:
            CommandError: OperationFailed (96), the name is another one, as in mongod.
        """
        if name == "global":
            return LogExcerpt(self._total, tuple(self._lines))
        if name == "startupWarnings":
            return LogExcerpt(0, ())
        raise CommandError(ErrorCode.OperationFailed, f"No log named '{name}'")
