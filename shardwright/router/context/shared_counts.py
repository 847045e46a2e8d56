"""Counts that all processes of a router share: a fail point that is on three times is not on three times in each.

They are kept in files, whose locks make each step atomic. They are used only while a fail point is on.
"""

import fcntl
from collections.abc import Callable
from itertools import count
from pathlib import Path


class SharedCounts:
    """Counts by name.

    Args:
        directory: a directory that the router's processes share; None for a router of one process.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def reset(self, name: str) -> None:
        """Begin to count at 0 again, in all processes."""
        path = self._path(name)
        if path is not None:
            path.write_bytes(b"0")

    def counter(self, name: str) -> Callable[[], int]:
        """A function that returns 0 when any of the processes calls it first, then 1, and so on."""
        path = self._path(name)
        return count().__next__ if path is None else lambda: _next(path)

    def _path(self, name: str) -> Path | None:
        return None if self._directory is None else self._directory / f"count-{name}"


def _next(path: Path) -> int:
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read())
        file.seek(0)
        file.write(str(number + 1).encode())
        return number
