"""A small cluster for the tests that need real mongods, started once."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.shardd.lone_mongod import LoneMongod, lone_mongod
from tests.shardd.mini_cluster import MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace

_names = count()


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """One config server and the shards ``sh0`` and ``sh1``. Tests use databases of their own."""
    with mini_cluster(tmp_path_factory.mktemp("mini")) as cluster:
        yield cluster


@pytest.fixture
def ranged(mini: MiniCluster) -> ShardedNamespace:
    """A new collection sharded by ``a``: below 0 and from 10 on ``sh0``, between them ``sh1``."""
    sharded = ShardedNamespace(mini, f"ranged{next(_names)}.c", {"a": 1}, "sh0")
    sharded.split([{"a": 0}, {"a": 10}])
    sharded.move({"a": 0}, {"a": 10}, "sh1")
    assert sharded.run({"cleanupOrphaned": sharded.namespace}, db="admin")["ok"]  # no filter is on from here
    return sharded


@pytest.fixture
def db(mini: MiniCluster) -> str:
    """The name of a database that does not exist yet."""
    return f"db{next(_names)}"


@pytest.fixture(scope="session")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneMongod]:
    """A mongod that belongs to no shard. Tests use databases of their own."""
    with lone_mongod(tmp_path_factory.mktemp("lone")) as mongod:
        yield mongod
