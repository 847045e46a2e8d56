"""Shares of a limited result: large enough for documents that are anywhere, and given up where they are too small."""

import random
from math import comb

import pytest

from shardwright.router.placement.limit_shares import LimitShares, likely_share

LIMIT = 100
SHARDS = 2


def reaches(share: int, limit: int, part: float) -> float:
    """The exact probability that a binomially distributed number is at least ``share``."""
    return sum(comb(limit, each) * part**each * (1 - part) ** (limit - each) for each in range(share, limit + 1))


@pytest.mark.parametrize("limit", [10, 40, 100, 101, 400])
@pytest.mark.parametrize("part", [0.02, 0.1, 1 / 3, 0.5, 0.6, 0.8])
@pytest.mark.parametrize("failures", [1 / 1_000, 1 / 10_000])
def test_a_share_is_as_small_as_its_probability_allows(limit: int, part: float, failures: float) -> None:
    share = likely_share(limit, part, failures)
    assert reaches(share, limit, part) <= 1.5 * failures
    assert share <= 2 or reaches(share - 3, limit, part) > failures


@pytest.mark.parametrize(
    ("limit", "shards", "share"),
    [
        (100, 2, 66),
        (100, 3, 50),
        (100, 10, 23),
        (1_000, 2, 550),
        (10, 10, 7),
        (10, 2, None),
        (1, 2, None),
        (1, 100, None),
    ],
)
def test_shares_of_equal_parts(limit: int, shards: int, share: int | None) -> None:
    assert LimitShares().share(limit, shards) == share


def test_a_share_that_was_too_small_grows() -> None:
    shares = LimitShares()
    before = shares.share(LIMIT, 4)
    shares.note_exhausted()
    after = shares.share(LIMIT, 4)
    assert before is not None
    assert after is not None
    assert before < after


def test_where_one_shard_has_everything_shares_are_rarely_tried() -> None:
    shares = LimitShares()
    tried = 0
    for _ in range(10_000):
        if shares.share(LIMIT, SHARDS) is not None:
            tried += 1
            shares.note_exhausted()
    assert 1 < tried < 10_000 / 400


def test_shares_that_are_too_small_by_chance_leave_the_others_small() -> None:
    shares, numbers = LimitShares(), random.Random(7)
    finds, asked_for, too_small = 10_000, 0, 0
    for _ in range(finds):
        share = shares.share(LIMIT, SHARDS) or LIMIT
        asked_for += share
        of_first_shard = numbers.getrandbits(LIMIT).bit_count()
        if max(of_first_shard, LIMIT - of_first_shard) > share:
            too_small += 1
            shares.note_exhausted()
    assert 0 < too_small < finds / 400
    assert asked_for / finds < 67.5


def test_shares_are_small_again_after_many_that_were_enough() -> None:
    shares = LimitShares()
    smallest = shares.share(LIMIT, SHARDS)
    shares.note_exhausted()
    for _ in range(20_000):
        shares.share(LIMIT, SHARDS)
    assert shares.share(LIMIT, SHARDS) == smallest
