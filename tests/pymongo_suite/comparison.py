"""Comparison of a file's results on the two deployments, with a verdict about the cluster."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tests.pymongo_suite.results import Outcome, Results

_LOST: Final = frozenset({Outcome.FAILED, Outcome.SKIPPED})


@dataclass(frozen=True)
class Comparison:
    """The results of one file of the suite.

    Attributes:
        excepted: the tests that are expected to fail on the cluster only.
    """

    file: str
    on_replica_set: Results
    on_cluster: Results
    excepted: frozenset[str]

    @property
    def lost(self) -> list[str]:
        """The tests that pass on the replica set, and fail, are skipped or do not end on the cluster.

        Tests that are skipped because they are not meant for a sharded cluster do not count.
        """
        return [
            test
            for test, outcome in self.on_replica_set.items()
            if outcome is Outcome.PASSED and self.on_cluster.get(test, Outcome.FAILED) in _LOST
        ]

    @property
    def unexpected(self) -> list[str]:
        """The lost tests that are not exceptions."""
        return [test for test in self.lost if test not in self.excepted]

    @property
    def outdated(self) -> list[str]:
        """The exceptions that are none: tests that pass, fail everywhere, do not exist or are not for clusters."""
        return sorted(self.excepted.difference(self.lost))

    def counts(self) -> tuple[int, ...]:
        """Count the passed, failed and skipped tests on the replica set, then on the cluster."""
        return (*_counts(self.on_replica_set), *_counts(self.on_cluster))


def _counts(results: Results) -> tuple[int, ...]:
    counted = Counter(results.values())
    skipped = counted[Outcome.SKIPPED] + counted[Outcome.NOT_FOR_TOPOLOGY]
    return counted[Outcome.PASSED], counted[Outcome.FAILED], skipped
