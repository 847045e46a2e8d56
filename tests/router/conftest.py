"""A router, and a mongod to compare its replies with."""

from collections.abc import Iterator

import pytest

from tests.local_cluster import Client, RunningCluster


@pytest.fixture(scope="module")
def router(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    """The first router; the primary shard of the module's database ``DB`` is ``shard0``."""
    db: str = request.module.DB
    with cluster.direct("router.0") as connected:
        connected.admin.command("enableSharding", db, primaryShard="shard0")
        yield connected
        connected.drop_database(db)


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A mongod without a router; a shard's database of the same name would be the router's."""
    db: str = request.module.DB
    with cluster.direct("config.0.mongod") as connected:
        yield connected
        connected.drop_database(db)
