"""The part of PyMongo's suite that every test run includes, on the cluster of that run.

On a replica set all of its tests pass or are skipped as here, so the results need not be compared with any others; how
many have to pass is stated instead. `test_part_rest` compares what fails on a replica set, too.
"""

from collections.abc import Callable
from pathlib import Path

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.comparison import Comparison
from tests.pymongo_suite.exceptions import read_exceptions
from tests.pymongo_suite.results import Outcome
from tests.pymongo_suite.suite_run import SuiteRun


def _is_never(test: str) -> bool:
    return False


def check_file(
    cluster: RunningCluster, reports: Path, file: str, passed_min: int, is_always_run: Callable[[str], bool] = _is_never
) -> None:
    """As `check_file_at`, on the first router of a cluster, where no transaction is left open."""
    check_file_at(cluster.address("router.0"), reports, file, passed_min, is_always_run)
    with cluster.client() as client:
        client.admin.command("killAllSessions", [])


def check_file_at(
    address: str, reports: Path, file: str, passed_min: int, is_always_run: Callable[[str], bool] = _is_never
) -> None:
    """Run a file of the suite, in which only exceptions may fail.

    Args:
        address: of the router on which to run it.
        reports: a folder for the report and the log.
        file: one of `files`.
        passed_min: how many tests have to pass at least; the others are skipped by the suite itself.
        is_always_run: whether a test, by the names of its class and of itself, must not be skipped.
    """
    results = SuiteRun(address, reports).run(file)
    everywhere_else = {
        test: Outcome.SKIPPED if outcome is Outcome.SKIPPED else Outcome.PASSED for test, outcome in results.items()
    }
    comparison = Comparison(file, everywhere_else, results, read_exceptions().get(file, frozenset()))
    assert (comparison.unexpected, comparison.outdated) == ([], []), f"see {reports / file}.log"
    skipped = [test for test, outcome in results.items() if outcome is Outcome.SKIPPED and is_always_run(test)]
    assert skipped == [], f"see {reports / file}.log"
    assert sum(outcome is Outcome.PASSED for outcome in results.values()) >= passed_min
