"""Causal consistency: a session sees what it has written and read, and everything that those writes depended on.

Each cell has one writer, which writes ascending values. With each value it stores what its session *knew* at that time:
the values of all cells that it had written or read. A session that reads a cell takes over its writer's knowledge, and
must never see an older value of any cell: read your writes, monotonic reads, monotonic writes, and writes follow reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Knowledge:
    """The knowledge of a session: the least value of each cell that it must see."""

    values: dict[str, int] = field(default_factory=dict)

    def learn(self, values: Mapping[str, int]) -> None:
        """Add values that were read, written or stored with a read value."""
        for cell, value in values.items():
            self.values[cell] = max(value, self.values.get(cell, 0))

    def check(self, found: Mapping[str, int]) -> list[str]:
        """The cells that are older than they may be.

        Args:
            found: the values that a read has returned, of any cells.
        """
        return [
            f"{cell} is {value}, and the session knows of {self.values[cell]}"
            for cell, value in sorted(found.items())
            if value < self.values.get(cell, 0)
        ]
