"""Pauses between attempts: each longer than the last, up to a maximum, and partly random.

Attempts that fail together, as on all shards while the config servers elect a primary, would be repeated together too.
So half of each pause is random. This is "equal jitter" as compared by M. Brooker, "Exponential Backoff And Jitter" (AWS
Architecture Blog, 2015). "Full jitter", anything from nothing to the whole pause, causes the fewest calls there, where
a hundred clients contend for one row. Here a few processes wait for a server to return, and some stop after a number of
attempts. These attempts must cover a minimum time, which pauses close to nothing would not.
"""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from shardwright.wire.errors import BackendError, CommandError


class Backoff:
    """The pauses of one loop, which grow while its attempts fail.

    There is no deadline: a loop with a time limit runs in a cancel scope.

    Args:
        first_seconds: maximum length of the first pause.
        seconds_max: maximum length of any pause.
        growth: the factor from one pause to the next.
        random_fraction: returns the share, from 0 to 1, of the random half of a pause.
    """

    def __init__(
        self,
        first_seconds: float,
        seconds_max: float,
        *,
        growth: float = 2.0,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        assert 0 < first_seconds <= seconds_max
        assert growth > 1
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._growth = growth
        self._random_fraction = random_fraction
        self._longest_seconds = first_seconds

    async def pause(self) -> None:
        """Sleep until the next attempt is due."""
        await trio.sleep(self.next_seconds())

    def next_seconds(self) -> float:
        """Return the length of the next pause, for callers that wait themselves; the following one will be longer."""
        longest = self._longest_seconds
        self._longest_seconds = min(longest * self._growth, self._seconds_max)
        return longest * (1 + self._random_fraction()) / 2

    def reset(self) -> None:
        """Start again with the first pause, because an attempt has succeeded."""
        self._longest_seconds = self._first_seconds


Result = TypeVar("Result")


async def until_done(
    step: Callable[[], Awaitable[Result]],
    backoff: Backoff,
    on_failure: Callable[[BackendError | CommandError, float], None],
) -> Result:
    """Repeat a step after server errors until it succeeds; return its result.

    There is no deadline: the caller runs in a cancel scope, usually of a term's nursery.

    Args:
        step: must be safe to repeat, because a failed attempt may have been executed.
        on_failure: called with the error and the seconds until the next attempt.
    """
    while True:
        try:
            return await step()
        except (BackendError, CommandError) as error:
            seconds = backoff.next_seconds()
            on_failure(error, seconds)
        await trio.sleep(seconds)
