"""Progress output: each step, with its duration."""

import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from typing import TextIO

from shardwright.deploy.progress import ProgressBar


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

    def advance(self, count: int = 1) -> None:
        """Record ``count`` more parts of the work as done; only a bar shows them."""

    def say(self, text: str) -> None:
        """Print a line."""
        self._write(f"{text}\n")

    def total(self) -> float:
        """Return the seconds since this object was created."""
        return time.monotonic() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class BarSteps(Steps):
    """Steps of work with a known size, shown by a bar; on a terminal, the bar replaces the lines.

    Args:
        is_alone: whether the bar replaces the lines of the steps.
    """

    def __init__(self, steps: Steps, bar: ProgressBar, *, is_alone: bool) -> None:
        super().__init__()
        self._steps = steps
        self._bar = bar
        self._is_alone = is_alone

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Run the block, and print a line about it unless the bar replaces the lines."""
        with nullcontext() if self._is_alone else self._steps.step(text):
            yield

    def advance(self, count: int = 1) -> None:
        """Advance the bar."""
        self._bar.advance(count)

    def say(self, text: str) -> None:
        """Print a line."""
        self._steps.say(text)

    def total(self) -> float:
        """Return the seconds since the start of the work."""
        return self._steps.total()


def counted(noun: str, things: Sized) -> str:
    """Return ``noun`` with its number: ``1 router``, ``2 routers``."""
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"
