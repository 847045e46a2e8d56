"""PyMongo's own tests of sessions, transactions, retried writes and concerns."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.part import check_file

PASSED_MIN: Final = {
    "test_causal_consistency": 17,
    "test_command_monitoring": 32,
    "test_read_write_concern_spec": 77,
    "test_retryable_writes": 5,
    "test_retryable_writes_unified": 72,
    "test_session": 39,
    "test_sessions_unified": 24,
    "test_transactions": 18,
}
"""Of each file as many as pass with the versions in ``requirements.lock``: fewer would mean that some are skipped."""

UNIFIED_TRANSACTIONS: Final = "test_transactions_unified", 257
"""These take minutes."""

_OF_ROUTERS: Final = re.compile("mongos|sharded_cluster|unpin", re.IGNORECASE)
_OF_OTHER_VERSIONS: Final = re.compile("clientBulkWrite|pre-4_4")
"""The first is of MongoDB 8.0."""


def is_about_routers(test: str) -> bool:
    """Whether a test is about pinning to a router, recovery tokens or two routers: replica sets skip these."""
    return _OF_ROUTERS.search(test) is not None and _OF_OTHER_VERSIONS.search(test) is None


@pytest.mark.exhaustive
def test_only_exceptions_fail_in_unified_transactions(cluster: RunningCluster, tmp_path: Path) -> None:
    check_file(cluster, tmp_path, *UNIFIED_TRANSACTIONS, is_about_routers)


@pytest.mark.parametrize("file", PASSED_MIN)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, PASSED_MIN[file], is_about_routers)
