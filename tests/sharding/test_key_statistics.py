"""Joining ranges and adding minutes keeps the sums."""

import random

import pytest
from bson import MaxKey, MinKey

from shardwright.sharding.key_statistics import Counts, KeyRange, added, collections_of, compressed
from tests.sharding.chunk_worlds import bound, key


def spread(namespace: str, *operations: int, first: int = 0) -> list[KeyRange]:
    """Neighbouring ranges with these numbers of reads."""
    return [
        KeyRange(
            namespace,
            bound(first + n),
            bound(first + n + 1),
            key(first + n),
            key(first + n + 1),
            Counts(reads, 0, reads, 10 * reads),
        )
        for n, reads in enumerate(operations)
    ]


def reads(ranges: list[KeyRange]) -> list[int]:
    return [each.counts.reads for each in ranges]


def test_few_ranges_stay() -> None:
    ranges = spread("d.c", 1, 2, 3)
    assert compressed(reversed(ranges), 3) == ranges


def test_the_least_used_neighbours_are_joined() -> None:
    found = compressed(spread("d.c", 100, 1, 1, 100, 50), 4)
    assert reads(found) == [100, 2, 100, 50]
    assert (found[1].min, found[1].max) == (bound(1), bound(3))


def test_collections_are_not_joined() -> None:
    assert len(compressed(spread("d.a", 1) + spread("d.b", 1), 1)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_sums_stay_and_order_too(seed: int) -> None:
    rng = random.Random(seed)
    ranges = [
        each
        for name in ("d.a", "d.b")
        for each in spread(name, *(rng.randrange(1000) for _ in range(rng.randrange(90))))
    ]
    most = rng.randrange(2, 70)
    found = compressed(ranges, most)
    assert len(found) <= most
    assert sum(reads(found)) == sum(reads(ranges))
    assert found == sorted(found, key=lambda each: (each.namespace, each.min_key))


def test_minutes_are_added_in_the_finest_ranges() -> None:
    coarse = [KeyRange("d.c", bound(MinKey()), bound(MaxKey()), key(MinKey()), key(MaxKey()), Counts(5))]
    found = added([coarse, spread("d.c", 1, 2, 3), spread("d.c", 10, first=2)])
    assert reads(found) == [6, 2, 13]


def test_a_document_has_collections_with_ranges() -> None:
    (found,) = collections_of(spread("d.c", 4))
    assert found["ns"] == "d.c"
    (only,) = found["ranges"]
    assert dict(only["min"]) == {"x": 0}
    assert {name: only[name] for name in ("reads", "writes", "documents", "bytes")} == {
        "reads": 4,
        "writes": 0,
        "documents": 4,
        "bytes": 40,
    }
