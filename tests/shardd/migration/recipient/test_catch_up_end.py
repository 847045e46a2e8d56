"""The maximum number of changes in the last batch of the catch-up."""

import trio
from trio.testing import MockClock

from shardwright.shardd.migration.recipient.transfer import CatchUpEnd


def limits_over_time(documents_cloned: int) -> list[int]:
    """Return the largest number of changes with which the catch-up ends, every five seconds from its beginning."""
    limits: list[int] = []

    async def main() -> None:
        end = CatchUpEnd(documents_cloned)
        for _ in range(5):
            limits.append(max(changes for changes in range(2_000) if end.is_reached(changes)))
            await trio.sleep(5.0)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return limits


def test_first_none_then_a_few_then_up_to_a_tenth_of_the_clone() -> None:
    assert limits_over_time(documents_cloned=3_000) == [0, 64, 128, 256, 300]


def test_a_few_however_small_the_clone_is() -> None:
    assert limits_over_time(documents_cloned=10) == [0, 64, 64, 64, 64]
