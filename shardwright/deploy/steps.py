"""Progress output: each step with its duration, or a bar."""

import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from typing import TextIO

BAR_WIDTH = 32

# Seconds between redraws on a terminal; elsewhere only the finished bar is printed.
REDRAW_INTERVAL = 0.1


class _ProgressBar:
    """A bar that counts towards ``total``; created and finished by `progress_bar`."""

    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self._label = label
        self._total = total
        self._stream = stream
        self._done = 0
        self._started = time.monotonic()
        self._drawn = float("-inf")

    def advance(self, count: int) -> None:
        """Record ``count`` more as done."""
        self._done += count
        now = time.monotonic()
        if self._stream.isatty() and now - self._drawn >= REDRAW_INTERVAL:
            self._drawn = now
            self._stream.write(f"\r{self.line()}")
            self._stream.flush()

    def finish(self) -> None:
        """Draw the last state and end the line."""
        start = "\r" if self._stream.isatty() else ""
        self._stream.write(f"{start}{self.line()}\n")
        self._stream.flush()

    def line(self) -> str:
        """Format the bar in its current state."""
        filled = BAR_WIDTH * self._done // max(1, self._total)
        elapsed = max(time.monotonic() - self._started, 1e-9)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        rate = f"{self._done / elapsed:>7,.0f}/s  {elapsed:5.1f} s"
        return f"  {self._label:<18} {bar} {self._done:>7,}/{self._total:,}  {rate}"


@contextmanager
def progress_bar(label: str, total: int, stream: TextIO | None = None) -> Iterator[_ProgressBar]:
    """Show a bar while the block runs."""
    bar = _ProgressBar(label, total, stream or sys.stdout)
    try:
        yield bar
    finally:
        bar.finish()


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

    def __init__(self, steps: Steps, bar: _ProgressBar, *, is_alone: bool) -> None:
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
