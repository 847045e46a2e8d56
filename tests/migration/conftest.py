"""Clusters whose processes may be killed, and collections on them."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.integration.sharded import LOWER, UPPER
from tests.migration.fault_cluster import NO_DELAY, FaultCluster, fault_cluster

_numbers = count(1)

SPLITS = (300, 600)
"""Bounds between the chunks of these tests: the middle one is moved from `LOWER`, the last one is on `UPPER`."""


class ClusterHolder:
    """A cluster shared by several tests, replaced by a new one after a test has failed on it."""

    def __init__(self, factory: pytest.TempPathFactory, *options: str) -> None:
        self._factory, self._options = factory, options
        self._running = ExitStack()
        self._cluster: FaultCluster | None = None
        self.is_suspect = False

    def get(self) -> FaultCluster:
        """The cluster; a new one is started if there is none, or none in a good state."""
        if self._cluster is not None and self.is_suspect:
            self.close()
        if self._cluster is None:
            cluster = fault_cluster(self._factory.mktemp("faults"), *self._options)
            self._cluster = self._running.enter_context(cluster)
        return self._cluster

    def close(self) -> None:
        """Stop the cluster."""
        self._cluster, self.is_suspect = None, False
        self._running.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Record for fixtures whether their test has failed."""
    report = yield
    if call.excinfo is not None:
        item.stash[FAILED] = True
    return report


FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="module")
def cluster_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHolder]:
    """Two shards of one member, two routers; modules may override this."""
    holder = ClusterHolder(tmp_path_factory, *NO_DELAY)
    yield holder
    holder.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, cluster_holder: ClusterHolder) -> Iterator[FaultCluster]:
    """The module's cluster, or a new one if the previous test has failed."""
    yield cluster_holder.get()
    cluster_holder.is_suspect = FAILED in request.node.stash


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: FaultCluster) -> Iterator[str]:
    """A collection sharded on ``key`` with three chunks; the middle one is on `LOWER`, the last one on `UPPER`."""
    name = f"migration_{next(_numbers)}"
    admin = cluster.router().admin
    admin.command("enableSharding", name, primaryShard=LOWER)
    yield shard_in_three(cluster, f"{name}.things")
    if FAILED not in request.node.stash:
        cluster.router().drop_database(name)


def shard_in_three(cluster: FaultCluster, namespace: str) -> str:
    """Shard a collection on ``key`` and place its three chunks; returns its name."""
    admin = cluster.router().admin
    admin.command("shardCollection", namespace, key={"key": 1})
    for bound in SPLITS:
        admin.command("split", namespace, middle={"key": bound})
    admin.command("moveChunk", namespace, find={"key": SPLITS[1]}, to=UPPER)
    return namespace
