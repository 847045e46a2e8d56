"""The part of the long tests that a quick run keeps.

A test marked ``matrix`` runs, in ``make test``, for a few combinations of its parameters only: as few as it takes for
every value of every parameter to occur. The choice changes with the seed, so that over time all combinations run.
``matrix(share=0.5)`` keeps half of these, where another matrix has all the values and the tests are slow.

A property is tried on fewer examples, and repetitions are fewer: see `many`.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

_is_whole = False
_seed = 0


def choose_by(seed: int) -> None:
    """Have `lot_of` and `is_drawn` draw by this seed; called before tests are collected."""
    global _seed
    _seed = seed


def is_drawn(share: float, subject: str) -> bool:
    """Whether this run's sample contains a subject.

    Args:
        share: of the subjects that are drawn, at most 1.
        subject: anything, for example the file of a test.
    """
    return lot_of(subject) < share


def lot_of(subject: str) -> float:
    """A number from 0 to 1 that a subject has in this run and, by chance, not in others."""
    return random.Random(f"{_seed}/{subject}").random()


def run_all() -> None:
    """Leave nothing out in this run; called before tests are collected."""
    global _is_whole
    _is_whole = True


def many(whole: int, sample: int) -> int:
    """Return the number of repetitions, examples, or seconds of a test.

    Args:
        whole: the number if nothing is left out.
        sample: the number in a quick run.
    """
    return whole if _is_whole else sample


def covering_sample(rows: Sequence[tuple[str, ...]], seed: int) -> list[int]:
    """The indices of a few rows in which every value of every column occurs, in ascending order.

    Args:
        rows: one tuple of values for each row, all of the same length.
        seed: the same seed gives the same sample.
    """
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    missing = {cell for row in rows for cell in enumerate(row)}
    kept = []
    while missing:
        # The row with the most values that are still missing, the first of the shuffled order among equals.
        best = max(order, key=lambda index: len(missing.intersection(enumerate(rows[index]))))
        order.remove(best)
        missing.difference_update(enumerate(rows[best]))
        kept.append(best)
    return sorted(kept)


def sampled(items: Iterable[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run and tests to leave out. A test without parameters in a file of matrices always runs.

    Args:
        items: all tests that were collected.
        seed: chooses the sample of each matrix.
    """
    matrices: dict[str, list[pytest.Function]] = defaultdict(list)
    left_out: set[pytest.Item] = set()
    items = list(items)
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            left_out.add(item)
        elif isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("matrix"):
            matrices[f"{item.path}::{item.originalname}"].append(item)
    for cases in matrices.values():
        kept = covering_sample([_parameters(case) for case in cases], seed)
        kept = random.Random(seed).sample(kept, math.ceil(len(kept) * _share(cases[0])))
        left_out.update(case for index, case in enumerate(cases) if index not in kept)
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def _share(case: pytest.Function) -> float:
    marker = case.get_closest_marker("matrix")
    assert marker is not None
    share: float = marker.kwargs.get("share", 1)
    return share


def _parameters(case: pytest.Function) -> tuple[str, ...]:
    return tuple(str(value) for _, value in sorted(case.callspec.params.items()))
