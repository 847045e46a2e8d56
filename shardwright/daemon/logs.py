"""Structured logs: one JSON object per line, on standard error or in a file.

Every line has ``t`` (ISO 8601, UTC, milliseconds), ``level``, ``component`` and ``msg`` (one short sentence), then its
fields in snake_case. Our own lines come from `wire.logger`; those of libraries, and Python's warnings, come through the
standard library and get the same format.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from shardwright.daemon.held_back import log_signals_held_back
from shardwright.daemon.log_file import LogFile, LogRotation
from shardwright.daemon.recent_log import RecentLog
from shardwright.daemon.redaction import REDACTION
from shardwright.wire.logger import get_logger

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

recent: Final = RecentLog()
"""The lines returned by the ``getLog`` command of this process."""


_logger: Final = get_logger("daemon.logs")


class JSONFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. Values that JSON cannot represent are written as strings."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        line: dict[str, Any] = {
            "t": timestamp(record.created),
            "level": record.levelname.lower(),
            "component": record.name,
            "msg": REDACTION.message(record.getMessage(), is_own="fields" in vars(record)),
        }
        attributes = vars(record)
        fields = dict(attributes.get("fields", {}))
        fields.update(
            (name, value) for name, value in attributes.items() if name not in _RECORD_ATTRIBUTES and name != "fields"
        )
        for name, value in REDACTION.fields(fields).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = REDACTION.traceback(record.exc_info[1], self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))


class LineWriter(Protocol):
    """The destination of lines: a standard stream or a `LogFile`."""

    def write(self, text: str, /) -> object:
        """Append ``text``."""

    def flush(self) -> object:
        """Write any buffered text."""


class LogSink(logging.Handler):
    """Writes each line to a stream and adds it to a `RecentLog`; closing it closes a `LogFile`."""

    def __init__(self, stream: LineWriter, recent_log: RecentLog) -> None:
        super().__init__()
        self._stream = stream
        self._recent = recent_log
        self.setFormatter(JSONFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; the standard library reports a broken stream on standard error and raises nothing."""
        try:
            line = self.format(record)
            self._recent.add(line)
            with log_signals_held_back():
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


def configure_logs(level: str = "info", file: Path | None = None, rotation: LogRotation = LogRotation.RENAME) -> None:
    """Send the lines of all components to standard error, or append them to ``file``. Called once at startup.

    Raises:
        OSError: the file cannot be opened.
    """
    stream = sys.stderr if file is None else LogFile(file, rotation)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if isinstance(handler, LogSink):
            handler.close()
    root.addHandler(LogSink(stream, recent))
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
    """Rotate the log file according to the option ``--log-rotate``; without a log file nothing is done.

    Args:
        suffix: see `LogFile.rotate`.

    Raises:
        OSError: it failed; logging continues in the old file, which records the failure.
    """
    _change_files(lambda file: file.rotate(suffix))


def reopen_log() -> None:
    """Continue in the file that now has the log's name, after another process has rotated it.

    Raises:
        OSError: as `rotate_log`.
    """
    _change_files(LogFile.reopen)


def _change_files(change: Callable[[LogFile], None]) -> None:
    try:
        with log_signals_held_back():
            for handler in logging.getLogger().handlers:
                if isinstance(handler, LogSink) and handler.file is not None:
                    change(handler.file)
    except OSError as error:
        _logger.error("Could not rotate the log", error=str(error))
        raise
    _logger.info("Log file opened", pid=os.getpid())


def set_level(level: str) -> None:
    """Change the level of all components at run time, except for those that have their own."""
    logging.getLogger().setLevel(LEVELS[level])


def set_component_level(component: str, level: str | None) -> None:
    """Give a component, and those below it, their own level at run time; None takes it away again."""
    logging.getLogger(component).setLevel(logging.NOTSET if level is None else LEVELS[level])


def timestamp(seconds: float) -> str:
    """POSIX seconds as ISO 8601 in UTC with milliseconds: ``2026-01-31T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
