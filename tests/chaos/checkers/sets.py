"""Sets: what was added is there until it is removed, once, and what was removed does not come back."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.operations import Operation


@dataclass(frozen=True)
class Life:
    """When one element may have been there. An element is added and removed at most once.

    Attributes:
        added: the operation that adds it.
        removed: the one that removes it, None if there was none.
    """

    added: Operation
    removed: Operation | None = None

    def is_certain(self, began: float, ended: float) -> bool:
        """Whether a read between these times has to show it."""
        return self.added.ended < began and (self.removed is None or self.removed.began > ended)

    def is_possible(self, began: float, ended: float) -> bool:
        """Whether such a read may show it."""
        return self.added.began <= ended and (self.removed is None or self.removed.ended >= began)


def check_set(operations: Sequence[Operation]) -> list[str]:
    """Compare each ``read``, whose result is a list of elements, with each ``add`` and ``remove``."""
    lives = _lives(operations)
    return [
        anomaly
        for read in operations
        if read.kind == "read" and read.is_known
        for anomaly in check_set_read(lives, read.result, read.began, read.ended)
    ]


def check_set_read(lives: dict[str, Life], found: Iterable[str], began: float, ended: float) -> list[str]:
    """What is wrong about the elements that one read found, with the operations on them."""
    times = Counter(found)
    wrong = {
        "duplicated": [element for element, count in times.items() if count > 1],
        "lost": [element for element, life in lives.items() if element not in times and life.is_certain(began, ended)],
        "resurrected": [
            element for element in times if element in lives and not lives[element].is_possible(began, ended)
        ],
        "never added": [element for element in times if element not in lives],
    }
    return [
        f"{what}: {len(elements)} elements in the read from {began:.4f} to {ended:.4f}"
        + "".join(f"\n      {_described(element, lives)}" for element in sorted(elements)[:5])
        for what, elements in wrong.items()
        if elements
    ]


def _lives(operations: Sequence[Operation]) -> dict[str, Life]:
    removed = {operation.argument: operation for operation in operations if operation.kind == "remove"}
    return {
        operation.argument: Life(operation, removed.get(operation.argument))
        for operation in operations
        if operation.kind == "add"
    }


def _described(element: str, lives: dict[str, Life]) -> str:
    life = lives.get(element)
    return element if life is None else f"{life.added}; {life.removed or 'not removed'}"
