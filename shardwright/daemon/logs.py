"""Structured logs: one JSON object per line, on standard error or in a file.

By default a line has ``t`` (ISO 8601, UTC, milliseconds), ``level``, ``component`` and ``msg`` (a sentence), then its
fields in snake_case. Our own lines come from `wire.logger`. Lines of libraries and Python's warnings arrive through the
standard library and get the same format.

The newest lines are kept in memory for the ``getLog`` command.
"""

import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from shardwright.daemon.log_file import LogFile, LogRotation
from shardwright.daemon.log_formats import MongodbFormatter, fields_of, message_of, traceback_of
from shardwright.daemon.signal_mask import log_signals_masked
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

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
        """Remove all lines."""
        self._lines.clear()

    def excerpt(self, name: str) -> LogExcerpt:
        """Return the log with one of the `LOG_NAMES`; OperationFailed (96) for others, as in mongod."""
        if name == "global":
            return LogExcerpt(self._total, tuple(self._lines))
        if name == "startupWarnings":
            return LogExcerpt(0, ())
        raise CommandError(ErrorCode.OperationFailed, f"No log named '{name}'")


LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

recent: Final = RecentLog()
"""The lines returned by the ``getLog`` command of this process."""


_logger: Final = get_logger("daemon.logs")


class JSONFormatter(logging.Formatter):
    """A formatter of log records as lines of JSON. Values that JSON cannot represent are written as strings."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        line: dict[str, Any] = {
            "t": timestamp(record.created),
            "level": record.levelname.lower(),
            "component": record.name,
            "msg": message_of(record),
        }
        for name, value in fields_of(record).items():
            line.setdefault(name, value)
        traceback = traceback_of(record)
        if traceback is not None:
            line["traceback"] = traceback
        return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))


class LogFormat(StrEnum):
    """The forms of log lines."""

    JSON = "json"
    """This module's format."""

    MONGODB = "mongodb"
    """mongod's format, see `daemon.log_formats`."""


class LineWriter(Protocol):
    """The destination of lines: a standard stream or a `LogFile`."""

    def write(self, text: str, /) -> object:
        """Append ``text``."""

    def flush(self) -> object:
        """Write any buffered text."""


class LogSink(logging.Handler):
    """A handler that writes each line to a stream and a `RecentLog`; closing it closes a `LogFile`."""

    def __init__(self, stream: LineWriter, recent_log: RecentLog, log_format: LogFormat = LogFormat.JSON) -> None:
        super().__init__()
        self._stream = stream
        self._recent = recent_log
        self.setFormatter(MongodbFormatter() if log_format is LogFormat.MONGODB else JSONFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; the standard library reports a broken stream on standard error and raises nothing."""
        try:
            line = self.format(record)
            self._recent.add(line)
            with log_signals_masked():
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            self.handleError(record)

    @property
    def file(self) -> LogFile | None:
        """The destination, if it is a file."""
        return self._stream if isinstance(self._stream, LogFile) else None

    def close(self) -> None:
        """Release the stream; called by the standard library at exit."""
        if self.file is not None:
            self.file.close()
        super().close()


def configure_logs(
    level: str = "info",
    file: Path | None = None,
    rotation: LogRotation = LogRotation.RENAME,
    log_format: LogFormat = LogFormat.JSON,
) -> None:
    """Send all lines to standard error, or append them to ``file`` (OSError). Called once at startup."""
    stream = sys.stderr if file is None else LogFile(file, rotation)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if isinstance(handler, LogSink):
            handler.close()
    root.addHandler(LogSink(stream, recent, log_format))
    root.setLevel(LEVELS[level])
    logging.captureWarnings(True)


def log_uncaught_exceptions() -> None:
    """Log the interpreter's reports of uncaught exceptions."""

    def on_uncaught(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
        _logger.exception("Uncaught exception", raised=error)

    def on_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
        _logger.exception("Exception ignored", raised=unraisable.exc_value, where=repr(unraisable.object))

    sys.excepthook = on_uncaught
    sys.unraisablehook = on_unraisable


def rotate_log(suffix: str) -> None:
    """Rotate the log file according to the option ``--log-rotate``; does nothing without a log file.

    Args:
        suffix: see `LogFile.rotate`.

    Raises:
        OSError: it failed; logging continues in the old file, which records the failure.
    """
    _change_files(lambda file: file.rotate(suffix))


def reopen_log() -> None:
    """Continue in the file that another process created in a rotation; errors as `rotate_log`."""
    _change_files(LogFile.reopen)


def _change_files(change: Callable[[LogFile], None]) -> None:
    try:
        with log_signals_masked():
            for handler in logging.getLogger().handlers:
                if isinstance(handler, LogSink) and handler.file is not None:
                    change(handler.file)
    except OSError as error:
        _logger.error("Could not rotate the log", error=str(error))
        raise
    _logger.info("Log file opened", pid=os.getpid())


def set_level(level: str) -> None:
    """Change the level of all components at run time, except for components with a separate level."""
    logging.getLogger().setLevel(LEVELS[level])


def set_component_level(component: str, level: str | None) -> None:
    """Set the level of a component and its subcomponents at run time; None removes it."""
    logging.getLogger(component).setLevel(logging.NOTSET if level is None else LEVELS[level])


def timestamp(seconds: float) -> str:
    """Format POSIX seconds as ISO 8601 in UTC with milliseconds: ``2026-01-31T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
