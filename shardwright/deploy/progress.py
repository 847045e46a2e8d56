"""A progress bar."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

WIDTH = 32

# Seconds between redraws on a terminal; elsewhere only the finished bar is printed.
REDRAW_INTERVAL = 0.1


class ProgressBar:
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
        filled = WIDTH * self._done // max(1, self._total)
        elapsed = max(time.monotonic() - self._started, 1e-9)
        bar = "█" * filled + "░" * (WIDTH - filled)
        rate = f"{self._done / elapsed:>7,.0f}/s  {elapsed:5.1f} s"
        return f"  {self._label:<18} {bar} {self._done:>7,}/{self._total:,}  {rate}"


@contextmanager
def progress_bar(label: str, total: int, stream: TextIO | None = None) -> Iterator[ProgressBar]:
    """Show a bar while the block runs."""
    bar = ProgressBar(label, total, stream or sys.stdout)
    try:
        yield bar
    finally:
        bar.finish()
