"""Files of both suites that the other parts leave out, on a replica set and on the cluster; a few of them each day."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite import test_part_collections, test_part_crud, test_part_gridfs, test_part_sessions
from tests.pymongo_suite.comparison import Comparison
from tests.pymongo_suite.deployments import replica_set
from tests.pymongo_suite.exceptions import read_exceptions
from tests.pymongo_suite.files import MOTOR, PYMONGO
from tests.pymongo_suite.results import Outcome
from tests.pymongo_suite.suite_run import SuiteRun

ELSEWHERE: Final = frozenset(
    {
        *test_part_collections.PASSED_MIN,
        *test_part_crud.PASSED_MIN,
        *test_part_gridfs.PASSED_MIN,
        *test_part_sessions.PASSED_MIN,
        test_part_sessions.UNIFIED_TRANSACTIONS[0],
    }
)
TIMED: Final = frozenset(
    {
        *("test_change_stream", "test_client", "test_client_backpressure", "test_connection_monitoring", "test_csot"),
        *("test_discovery_and_monitoring", "test_heartbeat_monitoring", "test_load_balancer", "test_max_staleness"),
        *("test_monitor", "test_monitoring", "test_pooling", "test_retryable_reads", "test_sdam_monitoring_spec"),
        *("test_server_selection", "test_server_selection_in_window", "test_server_selection_logging"),
        *("test_streaming_protocol", "test_threads"),
    }
)
"""Files whose tests depend on how long something takes."""

SAMPLED: Final = tuple(file for file in (*PYMONGO, *MOTOR) if file not in ELSEWHERE | TIMED)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a plain replica set."""
    with replica_set(tmp_path_factory.mktemp("replica_set") / "data") as address:
        yield address


@pytest.mark.matrix(share=0.08)
@pytest.mark.parametrize("file", SAMPLED)
def test_only_exceptions_are_lost(cluster: RunningCluster, plain: str, tmp_path: Path, file: str) -> None:
    check_beside_replica_set(cluster, plain, tmp_path, file)


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", sorted(TIMED))
def test_only_exceptions_are_lost_where_time_counts(
    cluster: RunningCluster, plain: str, tmp_path: Path, file: str
) -> None:
    check_beside_replica_set(cluster, plain, tmp_path, file)


def check_beside_replica_set(cluster: RunningCluster, plain: str, reports: Path, file: str) -> None:
    """Run a file on both; unlike in `check_file`, what fails on both may fail."""
    beside = SuiteRun(plain, reports / "replica_set").run(file)
    assert Outcome.PASSED in beside.values(), f"see {reports / 'replica_set' / file}.log"
    results = SuiteRun(cluster.address("router.0"), reports / "cluster").run(file)
    comparison = Comparison(file, beside, results, read_exceptions().get(file, frozenset()))
    assert (comparison.unexpected, comparison.outdated) == ([], []), f"see {reports / 'cluster' / file}.log"


def test_the_files_where_time_counts_exist() -> None:
    assert {*PYMONGO} >= TIMED
