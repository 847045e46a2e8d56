"""Clusters whose processes may be killed, as for the fault tests of migrations, and changes to be made on them."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.ddl.changes import STOPS, THINGS, Change
from tests.integration.sharded import LOWER
from tests.migration.conftest import FAILED, cluster, cluster_holder, pytest_runtest_makereport, shard_in_three
from tests.migration.fault_cluster import FaultCluster

__all__ = ["change", "cluster", "cluster_holder", "pytest_runtest_makereport"]

_numbers = count(1)


@pytest.fixture
def change(request: pytest.FixtureRequest, cluster: FaultCluster, stop: str) -> Iterator[Change]:
    """The change of the test, with its prerequisites."""
    change = STOPS[stop][0](f"ddl_{next(_numbers)}")
    router = cluster.router()
    router.admin.command("enableSharding", change.writers_db, primaryShard=LOWER)
    if change.has_sharded_things:
        shard_in_three(cluster, f"{change.writers_db}.{THINGS}")
    change.prepare(router)
    yield change
    if FAILED not in request.node.stash:
        for db in {change.db, change.writers_db}:
            router.drop_database(db)
