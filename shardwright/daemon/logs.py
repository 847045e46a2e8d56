"""Structured logs: one JSON object per line, on standard error or in a file, and the rotation of a daemon's logs.

By default a line has ``t`` (ISO 8601, UTC, milliseconds), ``level``, ``component`` and ``msg`` (a sentence), then its
fields in snake_case. Our own lines come from `wire.logger`. Lines of libraries and Python's warnings arrive through the
standard library and get the same format.

The newest lines are kept in memory for the ``getLog`` command.

All daemons rotate their logs on ``logRotate`` and on SIGUSR1 (`DaemonLogs`). As in MongoDB there are two: ``server``,
the daemon's own log, and ``audit``, if there is an audit log.
"""

import errno
import fcntl
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from shardwright.daemon.log_formats import MongodbFormatter, fields_of, message_of, traceback_of
from shardwright.daemon.signal_mask import log_signals_masked
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

_logger: Final = get_logger("daemon.logs")

_MODE: Final = 0o600
"""The mode of mongod's logs, because slow operations show data of collections."""

_STANDARD_STREAMS: Final = (1, 2)

LINES_MAX: Final = 1024
LOG_NAMES: Final = ("global", "startupWarnings")
"""The names listed by ``getLog: "*"``."""

FAILED: Final = "Log rotation failed due to one or more errors"
SERVER: Final = "server"
AUDIT: Final = "audit"


class LogRotation(StrEnum):
    """Kinds of rotation, with the names of mongod's ``--logRotate``."""

    RENAME = "rename"
    """The file is renamed with the time as a suffix, and a new one is created."""
    REOPEN = "reopen"
    """The file is closed and opened again, after another program has moved it."""


class LogFile:
    """A log file. Each line is appended with a single system call.

    Several processes may write to the same file, and another program may move or truncate it at any time.

    Args:
        path: the file, which is opened at once.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, rotation: LogRotation = LogRotation.RENAME, mode: int = _MODE) -> None:
        self._path = path.absolute()
        self._rotation = rotation
        self._mode = mode
        self._descriptor = self._open()

    def write(self, text: str) -> None:
        """Append ``text``; OSError if not all of it can be written."""
        left = text.encode("utf-8", "backslashreplace")
        while left:
            left = left[os.write(self._descriptor, left) :]

    def flush(self) -> None:
        """Do nothing: lines are not buffered."""

    def rotate(self, suffix: str) -> None:
        """Start a new file, or continue in the file that another program or process has created in its place.

        Args:
            suffix: appended to the name of the finished file, after a dot.

        Raises:
            OSError: the file cannot be renamed, or a new one cannot be opened; the old one remains in use.
        """
        with self._locked():
            if self._rotation is LogRotation.RENAME and self.is_in_place():
                finished = self._path.with_name(f"{self._path.name}.{suffix}")
                if finished.exists():  # from a rotation within the same second
                    raise FileExistsError(errno.EEXIST, f"cannot rename the log: {finished} exists already")
                self._path.rename(finished)
        self.reopen()

    def reopen(self) -> None:
        """Continue in the file that now has the log's name; OSError, and no change, if it cannot be opened."""
        opened = self._open()
        for stream in _STANDARD_STREAMS:
            if _is_same_file(stream, self._descriptor):
                os.dup2(opened, stream)  # otherwise the finished file would occupy space until this process ends
        # The descriptor's number stays the same: a signal may have interrupted a write that is about to use it.
        os.dup2(opened, self._descriptor, inheritable=False)
        os.close(opened)

    def is_in_place(self) -> bool:
        """Whether the file still has its name."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Prevent other processes that write to the same file from renaming it at the same time."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False  # a standard stream may be closed


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


def _rotate_log(suffix: str) -> None:
    """Rotate the log file according to the option ``--log-rotate``; does nothing without a log file.

    Args:
        suffix: see `LogFile.rotate`.

    Raises:
        OSError: it failed; logging continues in the old file, which records the failure.
    """
    _change_files(lambda file: file.rotate(suffix))


def _reopen_log() -> None:
    """Continue in the file that another process created in a rotation; errors as `_rotate_log`."""
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


def silence(component: str) -> None:
    """Write no lines of a library; its caller logs what matters."""
    logging.getLogger(component).setLevel(logging.CRITICAL + 1)


def timestamp(seconds: float) -> str:
    """Format POSIX seconds as ISO 8601 in UTC with milliseconds: ``2026-01-31T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class DaemonLogs:
    """The logs of this process, with or without an audit log."""

    def __init__(self, audit: LogFile | None = None) -> None:
        self._audit = audit

    @property
    def kinds(self) -> tuple[str, ...]:
        """The existing logs."""
        return (SERVER,) if self._audit is None else (SERVER, AUDIT)

    def rotate(self, kind: str | None = None) -> None:
        """Rotate the logs according to ``--log-rotate``. A failure of one does not prevent the others.

        Args:
            kind: one of `kinds`; None for all.

        Raises:
            OSError: logging continues in the old file; the daemon's own log has the reason.
        """
        suffix = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
        _logger.info("Log rotation initiated", suffix=suffix, kind=kind)
        self._change({SERVER: lambda: _rotate_log(suffix), AUDIT: lambda: self._change_audit(suffix)}, kind)

    def reopen(self) -> None:
        """Continue in the files that another process created in a rotation; errors as `rotate`."""
        self._change({SERVER: _reopen_log, AUDIT: self._change_audit})

    def rotate_for_client(self, kind: str | None = None) -> None:
        """Call `rotate` at the request of a client.

        Args:
            kind: the client's unchecked argument; None for all.

        Raises:
            CommandError: NoSuchKey, there is no such log; FileRenameFailed, as `rotate`.
        """
        if kind is not None and kind not in self.kinds:
            raise CommandError(ErrorCode.NoSuchKey, FAILED)
        try:
            self.rotate(kind)
        except OSError as error:
            raise CommandError(ErrorCode.FileRenameFailed, FAILED) from error

    def _change(self, changes: Mapping[str, Callable[[], None]], kind: str | None = None) -> None:
        failures = []
        with log_signals_masked():
            for each in self.kinds if kind is None else (kind,):
                try:
                    changes[each]()
                except OSError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def _change_audit(self, suffix: str | None = None) -> None:
        """Rotate the audit log, or reopen it if there is no suffix."""
        assert self._audit is not None
        try:
            if suffix is None:
                self._audit.reopen()
            else:
                self._audit.rotate(suffix)
        except OSError as error:
            _logger.error("Could not rotate the audit log", error=str(error))
            raise
        _logger.info("Audit log opened", pid=os.getpid())
