"""The newest lines of the log, kept in memory for the ``getLog`` command."""

import json
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
    """Two ring buffers of lines: all lines, and startup warnings."""

    __slots__ = ("_lines", "_startup_warnings", "_total")

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._startup_warnings: deque[str] = deque(maxlen=LINES_MAX)
        self._total = 0

    def add(self, line: str) -> None:
        """Add a line of the log."""
        self._total += 1
        self._lines.append(line)

    def add_startup_warning(self, timestamp: str, sentence: str) -> None:
        """Add a startup warning in mongod's log format, since shells read ``t.$date`` and ``msg`` from it."""
        line = {
            "t": {"$date": timestamp},
            "s": "W",
            "c": "CONTROL",
            "ctx": "main",
            "msg": sentence,
            "tags": ["startupWarnings"],
        }
        self._startup_warnings.append(json.dumps(line, ensure_ascii=False))

    def clear(self) -> None:
        """Forget all lines except startup warnings."""
        self._lines.clear()

    def excerpt(self, name: str) -> LogExcerpt:
        """The log of one of the `LOG_NAMES`.

        Raises:
            CommandError: OperationFailed (96), the name is another one, as in mongod.
        """
        if name == "global":
            return LogExcerpt(self._total, tuple(self._lines))
        if name == "startupWarnings":
            return LogExcerpt(len(self._startup_warnings), tuple(self._startup_warnings))
        raise CommandError(ErrorCode.OperationFailed, f"No log named '{name}'")
