"""A run in parts, for machines on which the whole takes longer than there is time (``make test-all PART=2/5``).

Files stay together, as their tests share servers.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pytest

from tests.longest_first import SECONDS

_SECONDS_OF_OTHERS: Final = 0.3
"""Estimated seconds of a test in a file that `SECONDS` does not name."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of about the same length.

    Attributes:
        number: which, from 1.
        total: how many there are.
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The part in a command line, such as ``2/5``.

        Raises:
            ArgumentTypeError: it is something else.
        """
        number, slash, total = text.partition("/")
        if slash and number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total):
            return cls(int(number), int(total))
        raise argparse.ArgumentTypeError(f"{text!r} is no part; one of five is 1/5, 2/5, 3/5, 4/5 or 5/5")

    def of(self, items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
        """Divide tests into the ones of this part and the others."""
        mine = self._files(item.location[0] for item in items)
        kept = [item for item in items if item.location[0] in mine]
        return kept, [item for item in items if item.location[0] not in mine]

    def _files(self, paths: Iterable[str]) -> set[str]:
        """Return the files of this part: from the longest on, each goes to the part that is the shortest until then."""
        seconds = {path: SECONDS.get(path, count * _SECONDS_OF_OTHERS) for path, count in Counter(paths).items()}
        parts: list[set[str]] = [set() for _ in range(self.total)]
        lengths = [0.0] * self.total
        for path in sorted(seconds, key=lambda path: (-seconds[path], path)):
            shortest = lengths.index(min(lengths))
            parts[shortest].add(path)
            lengths[shortest] += seconds[path]
        return parts[self.number - 1]
