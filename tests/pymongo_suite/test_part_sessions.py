"""PyMongo's own tests of sessions, transactions, retried writes and concerns."""

from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.part import check_file

PASSED_MIN: Final = {
    "test_causal_consistency": 17,
    "test_command_monitoring": 32,
    "test_read_write_concern_spec": 77,
    "test_retryable_writes_unified": 72,
    "test_session": 39,
    "test_sessions_unified": 24,
}

# Of the first file, two tests are about two routers and would be skipped if the suite found one only: then 16 are left.
_OF_TRANSACTIONS: Final = {"test_transactions": 17, "test_transactions_unified": 179}


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", _OF_TRANSACTIONS)
def test_only_exceptions_fail_in_transactions(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, _OF_TRANSACTIONS[file])


@pytest.mark.parametrize("file", PASSED_MIN)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, PASSED_MIN[file])
