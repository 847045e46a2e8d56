"""Clusters whose processes may be killed, as for the fault tests of migrations."""

from tests.migration.conftest import cluster, cluster_holder, pytest_runtest_makereport

__all__ = ["cluster", "cluster_holder", "pytest_runtest_makereport"]
