"""Databases, placed collections and clients of single processes."""

from collections.abc import Iterator
from itertools import count

import pytest
from pymongo.database import Database

from tests.integration.sharded import LOWER, Document, Documents, shard_by_hash, shard_by_range
from tests.local_cluster import Client, RunningCluster

_numbers = count(1)


@pytest.fixture(scope="session")
def routers(cluster: RunningCluster) -> Iterator[tuple[Client, Client]]:
    """A separate client of each router."""
    with cluster.direct("router.0") as first, cluster.direct("router.1") as second:
        yield first, second


@pytest.fixture(scope="session")
def client(routers: tuple[Client, Client]) -> Client:
    """A client of the first router."""
    return routers[0]


@pytest.fixture
def other_client(routers: tuple[Client, Client]) -> Client:
    """A client of the second router, which notices the first one's changes only when necessary."""
    return routers[1]


@pytest.fixture
def database(client: Client) -> Iterator[Database[Document]]:
    """The test's own empty database; its primary shard is the lower one."""
    name = f"integration_{next(_numbers)}"
    client.admin.command("enableSharding", name, primaryShard=LOWER)
    yield client[name]
    client.drop_database(name)


@pytest.fixture
def placed(database: Database[Document]) -> Documents:
    """The test's own empty collection, sharded by range and pre-placed on both shards."""
    return shard_by_range(database)


@pytest.fixture(scope="session")
def stock(client: Client) -> Iterator[Database[Document]]:
    """Collections shared by tests of reads and writes, one test at a time."""
    database = client["integration_stock"]
    shard_by_range(database)
    shard_by_hash(database)
    yield database
    client.drop_database(database.name)


@pytest.fixture
def ranged(stock: Database[Document]) -> Documents:
    """An emptied collection sharded by range and pre-placed on both shards; its chunks and indexes stay as they are."""
    stock.ranged.delete_many({})
    return stock.ranged


@pytest.fixture
def hashed(stock: Database[Document]) -> Documents:
    """An emptied collection sharded by the hash of ``_id`` on both shards."""
    stock.hashed.delete_many({})
    return stock.hashed


@pytest.fixture
def unsharded(stock: Database[Document]) -> Documents:
    """An emptied collection on the primary shard."""
    stock.unsharded.delete_many({})
    return stock.unsharded


@pytest.fixture(params=["ranged", "hashed", "unsharded"])
def collection(request: pytest.FixtureRequest) -> Documents:
    """Each kind of collection in turn."""
    found: Documents = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def lower_mongod(cluster: RunningCluster) -> Iterator[Client]:
    """A client of the mongod of the lower shard."""
    with cluster.direct("shard0.0.mongod") as connected:
        yield connected


@pytest.fixture(scope="session")
def upper_mongod(cluster: RunningCluster) -> Iterator[Client]:
    """A client of the mongod of the upper shard."""
    with cluster.direct("shard1.0.mongod") as connected:
        yield connected
