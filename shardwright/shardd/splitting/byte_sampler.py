"""Attributing bytes to chunks by samples, so that most writes cost an addition and a comparison.

The bytes written to a collection are divided into windows of equal length. From each window one byte is chosen at
random, and the chunk that it was written to is credited with the whole window. Whatever the order of writes, each chunk
is credited on average with exactly the bytes that were written to it; and all of them together, always with all bytes.
"""

from collections.abc import Iterator
from random import Random


class ByteSampler:
    """The bytes written to one collection.

    Args:
        window_bytes: the length of a window.
        random: chooses the bytes.

    Attributes:
        window_bytes: the length of the windows that begin from now on.
        total: the bytes so far.
        next: the number, from 0, of the next chosen byte.
    """

    __slots__ = ("_end", "_random", "_weight", "next", "total", "window_bytes")

    def __init__(self, window_bytes: int, random: Random) -> None:
        self.window_bytes = window_bytes
        self.total = 0
        self._random = random
        self._end = 0
        self._begin_window()

    def samples(self, size: int) -> Iterator[tuple[float, int]]:
        """The chosen bytes among the last ``size``: where each of them is, from 0 up to 1, and its window's length."""
        before = self.total - size
        while self.next < self.total:
            yield (self.next - before) / size, self._weight
            self._begin_window()

    def _begin_window(self) -> None:
        self._weight = self.window_bytes
        self.next = self._end + self._random.randrange(self._weight)
        self._end += self._weight
