"""Split positions in a chunk, as a number of documents."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.shardd.splitting.chunk_splitter import split_positions


@pytest.mark.parametrize(
    ("documents", "full", "positions"),
    [
        (0, 10, []),
        (10, 10, []),
        (13, 10, []),  # too little for a second chunk
        (14, 10, [7]),  # two equal ones
        (18, 10, [10]),
        (20, 10, [10]),
        (21, 10, [7, 14]),
        (75, 10, [10, 20, 30, 40, 48, 57, 66]),
        (78, 10, [10, 20, 30, 40, 50, 60, 70]),
    ],
)
def test_positions(documents: int, full: int, positions: list[int]) -> None:
    assert split_positions(documents, full) == positions


@given(st.integers(0, 5000), st.integers(1, 500))
def test_no_part_is_too_large_or_much_too_small(documents: int, full: int) -> None:
    positions = split_positions(documents, full)
    parts = [high - low for low, high in pairwise([0, *positions, documents])]
    assert sum(parts) == documents
    if positions:
        assert max(parts) <= full
        assert min(parts) >= 0.6 * full - 1
    else:
        assert documents <= full * 4 / 3
