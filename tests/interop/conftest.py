"""A genuine cluster behind our routers, and the servers of it and of our own cluster."""

from collections.abc import Iterator
from itertools import count

import pytest
from pymongo.database import Database

from tests.genuine_cluster import SHARDS, GenuineCluster, genuine_cluster
from tests.interop.deployment import Deployment, genuine_deployment, own_deployment
from tests.local_cluster import Client, RunningCluster

_numbers = count(1)


@pytest.fixture(scope="session")
def genuine(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenuineCluster]:
    """A genuine cluster with two of our routers."""
    with genuine_cluster(mongod_binary, tmp_path_factory.mktemp("genuine")) as running:
        yield running


@pytest.fixture(scope="session")
def client(genuine: GenuineCluster) -> Iterator[Client]:
    """A client of the first router of the genuine cluster."""
    with genuine.client(0) as connected:
        yield connected


@pytest.fixture(scope="session")
def other_client(genuine: GenuineCluster) -> Iterator[Client]:
    """A client of the second router of the genuine cluster."""
    with genuine.client(1) as connected:
        yield connected


@pytest.fixture
def database(client: Client) -> Iterator[Database[dict[str, object]]]:
    """An empty database whose primary shard is the first."""
    name = f"interop_{next(_numbers)}"
    client.admin.command("enableSharding", name, primaryShard=SHARDS[0])
    yield client[name]
    client.drop_database(name)


@pytest.fixture(scope="session")
def genuine_inside(genuine: GenuineCluster) -> Iterator[Deployment]:
    """The servers of the genuine cluster."""
    with genuine_deployment(genuine) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def own_inside(cluster: RunningCluster) -> Iterator[Deployment]:
    """The daemons of our cluster."""
    with own_deployment(cluster) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def both(genuine_inside: Deployment, own_inside: Deployment) -> tuple[Deployment, Deployment]:
    """Genuine first."""
    return genuine_inside, own_inside
