"""Sets: an added element is there once until it is removed, and a removed element does not come back."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.operations import UNKNOWN, Operation


@dataclass(frozen=True)
class Life:
    """The lifetime of one element. Times are those of `Operation`; `UNKNOWN` means possibly never.

    Attributes:
        added_from: the earliest time at which it may have been added.
        added_by: the time by which it certainly was added.
        removed_from: the earliest time at which it may have been removed.
        removed_by: the time by which it certainly was removed.
    """

    added_from: float
    added_by: float
    removed_from: float = UNKNOWN
    removed_by: float = UNKNOWN

    def is_certain(self, began: float, ended: float) -> bool:
        """Whether a read between these times must return it."""
        return self.added_by < began and self.removed_from > ended

    def is_possible(self, began: float, ended: float) -> bool:
        """Whether such a read may return it."""
        return self.added_from <= ended and self.removed_by >= began


def check_set(operations: Sequence[Operation]) -> list[str]:
    """Compare each ``read``, whose result is a list of elements, with all changes.

    ``add`` adds its argument, which nothing else adds; ``remove`` removes its argument; ``clear`` removes everything.
    """
    lives = lives_of(operations)
    return [
        anomaly
        for read in operations
        if read.kind == "read" and read.is_known
        for anomaly in check_set_read(lives, read.result, read.began, read.ended)
    ]


def check_set_read(lives: Mapping[str, Life], found: Iterable[str], began: float, ended: float) -> list[str]:
    """The anomalies in the elements found by one read."""
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
        + "".join(f"\n      {element} {lives.get(element, '')}" for element in sorted(elements)[:5])
        for what, elements in wrong.items()
        if elements
    ]


def lives_of(operations: Sequence[Operation]) -> dict[str, Life]:
    """The life of each element that was added."""
    removals = {operation.argument: operation for operation in operations if operation.kind == "remove"}
    clears = [operation for operation in operations if operation.kind == "clear"]
    return {
        operation.argument: _life(operation, removals.get(operation.argument), clears)
        for operation in operations
        if operation.kind == "add"
    }


def _life(added: Operation, removal: Operation | None, clears: Sequence[Operation]) -> Life:
    ends = [*clears, *([removal] if removal else [])]
    return Life(
        added.began,
        added.ended,
        # A removal concurrent with the addition may have come before or after it.
        min((end.began for end in ends if end.ended > added.began), default=UNKNOWN),
        min((end.ended for end in ends if end.began > added.ended), default=UNKNOWN),
    )
