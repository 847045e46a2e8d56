"""Showing the user what is being done, and how long it took."""

import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import TextIO


class Steps:
    """Prints one line per step, with its duration.

    Args:
        stream: the output; by default standard error, because ``--json`` uses standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._started = time.monotonic()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print ``text``, run the block, then complete the line with its duration."""
        started = time.monotonic()
        self._write(f"  {text:<52} ")
        try:
            yield
        except BaseException:
            self._write(f"failed after {time.monotonic() - started:.2f} s\n")
            raise
        self._write(f"{time.monotonic() - started:6.2f} s\n")

    def say(self, text: str) -> None:
        """Print a line."""
        self._write(f"{text}\n")

    def total(self) -> float:
        """Seconds since this object was created."""
        return time.monotonic() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def counted(noun: str, things: Sized) -> str:
    """``noun`` with its number: ``1 router``, ``2 routers``."""
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"
