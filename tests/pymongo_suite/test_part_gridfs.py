"""PyMongo's own tests of GridFS, commands and the Stable API."""

from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.part import check_file

PASSED_MIN: Final = {
    "test_gridfs": 26,
    "test_gridfs_bucket": 30,
    "test_gridfs_spec": 45,
    "test_run_command": 16,
    "test_versioned_api_integration": 38,
}


@pytest.mark.parametrize("file", PASSED_MIN)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, PASSED_MIN[file])
