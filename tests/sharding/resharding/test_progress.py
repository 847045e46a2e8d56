"""Estimates of the time that a recipient still needs."""

import pytest

from shardwright.sharding.resharding_operation import remaining_millis


@pytest.mark.parametrize(
    ("elapsed", "copied", "to_copy", "applied", "fetched", "expected"),
    [
        (1_000, 0, 100, 0, 0, None),  # nothing to go by
        (1_000, 25, 100, 0, 0, 6_000),  # 75 more take three times as long, and applying as long again
        (1_000, 99, 100, 0, 500, 20),
        (1_000, 100, 100, 0, 0, 0),
        (1_000, 100, 100, 0, 5, None),
        (1_000, 100, 100, 10, 40, 3_000),
        (1_000, 120, 100, 40, 40, 0),  # more than was expected
        (0, 50, 100, 0, 0, 0),
    ],
)
def test_remaining_time(
    elapsed: int, copied: int, to_copy: int, applied: int, fetched: int, expected: int | None
) -> None:
    progress = {"copied": copied, "to_copy": to_copy, "applied": applied, "fetched": fetched}
    assert remaining_millis(elapsed_millis=elapsed, **progress) == expected
