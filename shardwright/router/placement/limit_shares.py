"""The number of documents to request from each of several shards for a limited, sorted result.

A find with ``limit: 100`` on two shards needs 100 documents in total. To be certain of them, the router would request
100 from each shard and discard half. If a document's shard does not depend on its place in the sort, a shard's part of
the result follows a binomial distribution. Of 100 documents, one of two shards then has more than 66 only once in a
thousand times. Each shard is therefore asked for such a *share*. If a share proves too small, nothing has been returned
to the client yet, and the shards are asked for the whole result.

A document's shard may depend on its place in the sort: one shard has all of a result that is sorted by a ranged shard
key. So a collection's shares grow a little whenever one proved too small, up to the point where they are not worth it.
With each use, they shrink by a small fraction of that. At most about one find in 400 is then run twice, regardless of
the distribution of documents. Where places do not matter, the few shares that are too small by chance leave the others
as small as they can be.
"""

from functools import lru_cache
from math import ceil, sqrt
from statistics import NormalDist
from typing import Final

_FAILURES: Final = 1 / 500
"""Probability that some share proves too small, given the assumed skew."""

_WORTH_IT: Final = 3 / 4
"""Largest share that is used, as a fraction of the limit. A larger one would save too few documents."""

_GROWTH: Final = 1 / 16
"""Fraction of the way to "one shard has everything" by which the assumed skew grows after a short share."""

_DECAY: Final = _GROWTH / 600
"""Decrease of the assumed skew with each use.

A share that is too small once in 600 times keeps the skew constant on average. Rarer ones are attributed to chance.
"""


class LimitShares:
    """The observed distribution of results on one collection among its shards.

    Initially, all shards are expected to have equal parts. A new routing table resets it.
    """

    __slots__ = ("_inequality",)

    def __init__(self) -> None:
        self._inequality = 0.0  # 0: all parts are equal, 1: one shard has everything

    def share(self, limit: int, shard_count: int) -> int | None:
        """Return the number of documents to request from each of several shards; None for the whole limit."""
        self._inequality = max(0.0, self._inequality - _DECAY)
        part = self._inequality + (1 - self._inequality) / shard_count
        share = likely_share(limit, part, _FAILURES / shard_count)
        return share if share <= limit * _WORTH_IT else None

    def note_exhausted(self) -> None:
        """Increase the assumed skew after a share that was too small."""
        self._inequality += (1 - self._inequality) * _GROWTH


def likely_share(limit: int, part: float, failures: float) -> int:
    """Return a number that a binomial variable reaches with at most, and nearly, a given probability.

    It uses the normal distribution with the first term of its correction for skewness (Cornish and Fisher).

    Args:
        part: the probability of success in each of ``limit`` trials.
        failures: the probability of the returned number and all above it.
    """
    deviations = _deviations(failures)
    skew = (deviations * deviations - 1) * (1 - 2 * part) / 6
    return ceil(limit * part + deviations * sqrt(limit * part * (1 - part)) + skew + 0.5)


@lru_cache
def _deviations(failures: float) -> float:
    """Return how many standard deviations above the mean the upper tail of this probability begins."""
    return NormalDist().inv_cdf(1 - failures)
