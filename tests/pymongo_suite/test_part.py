"""The files of the suite that show most for the time they take, on the cluster of the test run.

On a replica set all of their tests pass, so the results need not be compared with any others.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.comparison import Comparison
from tests.pymongo_suite.exceptions import read_exceptions
from tests.pymongo_suite.results import Outcome
from tests.pymongo_suite.suite_run import SuiteRun

PART: Final = {
    "test_bulk": 30,
    "test_collection": 85,
    "test_command_monitoring": 30,
    "test_crud_unified": 300,
    "test_cursor": 60,
    "test_gridfs_spec": 40,
    "test_retryable_writes_unified": 70,
    "test_run_command": 15,
    "test_sessions_unified": 20,
    "test_versioned_api_integration": 35,
}
"""How many tests of each file have to pass at least; the others are skipped by the suite itself."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", PART)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    results = SuiteRun(cluster.address("router.0"), tmp_path).run(file)
    everywhere_else = dict.fromkeys(results, Outcome.PASSED)
    comparison = Comparison(file, everywhere_else, results, read_exceptions().get(file, frozenset()))
    assert (comparison.unexpected, comparison.outdated) == ([], []), f"see {tmp_path / file}.log"
    assert sum(outcome is Outcome.PASSED for outcome in results.values()) >= PART[file]
