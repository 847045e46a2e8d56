"""PyMongo's own tests of reads and writes."""

from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.part import check_file

PASSED_MIN: Final = {
    "test_bulk": 34,
    "test_collation": 16,
    "test_crud_unified": 304,
    "test_crud_v1": 14,
}


@pytest.mark.parametrize("file", PASSED_MIN)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, PASSED_MIN[file])
