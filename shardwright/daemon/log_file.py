"""A daemon's log file and its rotation."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

_MODE: Final = 0o600
"""The mode of mongod's logs, because slow operations show data of collections."""

_STANDARD_STREAMS: Final = (1, 2)


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
