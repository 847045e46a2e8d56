"""PyMongo's own tests of collections, cursors and databases."""

from pathlib import Path
from typing import Final

import pytest

from tests.local_cluster import RunningCluster
from tests.pymongo_suite.part import check_file

PASSED_MIN: Final = {
    "test_binary": 29,
    "test_collection": 88,
    "test_collection_management": 6,
    "test_cursor": 65,
    "test_custom_types": 51,
    "test_database": 33,
}


@pytest.mark.parametrize("file", PASSED_MIN)
def test_only_exceptions_fail(cluster: RunningCluster, tmp_path: Path, file: str) -> None:
    check_file(cluster, tmp_path, file, PASSED_MIN[file])
