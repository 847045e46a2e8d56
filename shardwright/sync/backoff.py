"""Pauses between attempts of a failed request. Pure."""

from collections.abc import Iterator
from typing import Final

ATTEMPTS_MAX: Final = 10
FIRST_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 64.0


def pauses() -> Iterator[float]:
    """Yield the seconds to wait after each failure but the last: 1, 2, 4 …, at most `PAUSE_SECONDS_MAX`."""
    for attempt in range(ATTEMPTS_MAX - 1):
        yield min(FIRST_SECONDS * 2**attempt, PAUSE_SECONDS_MAX)
