"""Cursor ids of the router: random, positive, and containing the index of the worker process.

The six bits below the sign are the worker's index, so that each worker can find the holder of a cursor.
"""

from collections.abc import Callable
from typing import Final

_WORKER_BITS: Final = 6
_RANDOM_BITS: Final = 63 - _WORKER_BITS

WORKERS_MAX: Final = 1 << _WORKER_BITS
"""Maximum number of worker processes that the ids can distinguish."""


def new_cursor_id(worker: int, random_bits: Callable[[int], int]) -> int:
    """Generate a cursor id; never 0, which means an exhausted cursor.

    Args:
        worker: index of the process that holds the cursor.
        random_bits: returns that many random bits as an integer, as ``random.SystemRandom().getrandbits``.
    """
    assert 0 <= worker < WORKERS_MAX
    return worker << _RANDOM_BITS | max(random_bits(_RANDOM_BITS), 1)


def worker_of(cursor_id: int) -> int | None:
    """Return the index of the worker that holds the cursor, None for a number that cannot be a router's id."""
    return cursor_id >> _RANDOM_BITS if cursor_id > 0 else None
