"""How much of a limited, sorted result each of several shards is asked for.

A find with ``limit: 100`` on two shards needs 100 documents in all. The router alone could be sure of them only if each
shard returned 100, and half of what the shards had found would be thrown away. If it does not depend on a document's
place in the sort which shard has it, a shard's part of the result follows a binomial distribution: of 100 documents,
one of two shards has more than 66 once in a thousand times. So each is asked for such a *share*. If that proves too
small, nothing has been returned to the client yet, and the shards are asked for the whole.

Where a document is may well depend on its place in the sort: one shard has all of a result that is sorted by a ranged
shard key. So a collection's shares grow a little whenever one proved too small, up to the point where they are not
worth it, and shrink by a small fraction of that with each use. Then at most about one find in 400 is run twice, however
the documents are distributed; and where their places do not matter, the few shares that are too small by chance leave
the others as small as they can be.
"""

from functools import lru_cache
from math import ceil, sqrt
from statistics import NormalDist
from typing import Final

_FAILURES: Final = 1 / 500
"""How often some share proves too small if the shards' parts are as unequal as they are taken to be."""

_WORTH_IT: Final = 3 / 4
"""A share is used if it is at most this part of the limit. Below, its few documents cost less than they would save."""

_GROWTH: Final = 1 / 16
"""Which part of the way to "one shard has everything" the assumed inequality goes when a share was too small."""

_DECAY: Final = _GROWTH / 600
"""How much of the assumed inequality is given up each time.

A share that is too small once in 600 times leaves it as it is, on average. It is chance if they are so less often.
"""


class LimitShares:
    """The observed distribution of results on one collection among its shards.

    Initially all shards are assumed to have equal parts, in expectation. A new routing table resets it.
    """

    __slots__ = ("_inequality",)

    def __init__(self) -> None:
        self._inequality = 0.0  # 0: all parts are equal, 1: one shard has everything

    def share(self, limit: int, shard_count: int) -> int | None:
        """How many documents to ask each of several shards for; None if they should be asked for all.

        Args:
            limit: how many documents are needed in all.
            shard_count: how many shards there are.
        """
        self._inequality = max(0.0, self._inequality - _DECAY)
        part = self._inequality + (1 - self._inequality) / shard_count
        share = likely_share(limit, part, _FAILURES / shard_count)
        return share if share <= limit * _WORTH_IT else None

    def note_exhausted(self) -> None:
        """Take the parts to be less equal from now on, since a share was too small."""
        self._inequality += (1 - self._inequality) * _GROWTH


def likely_share(limit: int, part: float, failures: float) -> int:
    """A number that a binomially distributed one reaches with a given probability, or a slightly lower one.

    By the normal distribution with the first term of its correction for skewness (Cornish and Fisher).

    Args:
        limit: the number of trials.
        part: the probability of each.
        failures: the probability of the number itself and all above it.
    """
    deviations = _deviations(failures)
    skew = (deviations * deviations - 1) * (1 - 2 * part) / 6
    return ceil(limit * part + deviations * sqrt(limit * part * (1 - part)) + skew + 0.5)


@lru_cache
def _deviations(failures: float) -> float:
    """How many standard deviations above the mean of a normal distribution this part of it begins."""
    return NormalDist().inv_cdf(1 - failures)
