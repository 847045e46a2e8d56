"""After how many documents to split a chunk: the rule of MongoDB's ``autoSplitVector``."""

from typing import Final

_RESPACED_MAX: Final = 3
"""As many of the last split points are moved if too little is left after the last one."""

_TAIL_MIN: Final = 0.8
_AVERAGE_MIN: Final = 2 / 3
"""Both as fractions of a full chunk: what is left over is at least the first, or else the last chunks are made equally
large; if they would be smaller than the second, there is one fewer of them."""


def split_positions(documents: int, documents_max: int) -> list[int]:
    """The numbers of documents below each split point, ascending.

    Args:
        documents: the number in the chunk.
        documents_max: the number that makes up a full chunk, at least 1.
    """
    points = max(0, documents - 1) // documents_max
    tail = documents - points * documents_max
    positions = [(number + 1) * documents_max for number in range(points)]
    if not points or tail >= _TAIL_MIN * documents_max:
        return positions
    respaced = min(points, _RESPACED_MAX)
    rest = respaced * documents_max + tail
    chunks = respaced + 1 if rest >= _AVERAGE_MIN * documents_max * (respaced + 1) else respaced
    kept = positions[: points - respaced]
    first = len(kept) * documents_max
    return kept + [first + number * rest // chunks for number in range(1, chunks)]
