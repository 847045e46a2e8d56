"""The last lines of the log kept in memory, for the ``getLog`` command."""

import json
from collections import deque
from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

LINES_MAX: Final = 1024
LOG_NAMES: Final = ("global", "startupWarnings")
"""What ``getLog: "*"`` lists."""


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """What ``getLog`` answers: how many lines there have been in all, and the last of them, oldest first."""

    total_lines_written: int
    lines: tuple[str, ...]


class RecentLog:
    """Two rings of lines: everything, and what was wrong at start."""

    __slots__ = ("_lines", "_startup_warnings", "_total")

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._startup_warnings: deque[str] = deque(maxlen=LINES_MAX)
        self._total = 0

    def add(self, line: str) -> None:
        """Remember a line of the log."""
        self._total += 1
        self._lines.append(line)

    def add_startup_warning(self, timestamp: str, sentence: str) -> None:
        """Remember a startup warning, in mongod's form of a log line: shells read ``t.$date`` and ``msg`` from it."""
        line = {
            "t": {"$date": timestamp},
            "s": "W",
            "c": "CONTROL",
            "ctx": "main",
            "msg": sentence,
            "tags": ["startupWarnings"],
        }
        self._startup_warnings.append(json.dumps(line, ensure_ascii=False))

    def excerpt(self, name: str) -> LogExcerpt:
        """The log of one of the `LOG_NAMES`.

        Raises:
            CommandError: OperationFailed (96), as mongod answers to another name.
        """
        if name == "global":
            return LogExcerpt(self._total, tuple(self._lines))
        if name == "startupWarnings":
            return LogExcerpt(len(self._startup_warnings), tuple(self._startup_warnings))
        raise CommandError(ErrorCode.OperationFailed, f"No log named '{name}'")
