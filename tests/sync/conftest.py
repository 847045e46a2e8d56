"""Sources and targets: replica sets, a genuine sharded cluster, and a cluster of ours."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.genuine_cluster import GenuineCluster, genuine_cluster
from tests.local_cluster import RunningCluster, running_cluster
from tests.sync.running import Ends, replica_set

KINDS: Final = (
    *("set-set", "set-cluster", "set-three"),
    *("genuine-set", "genuine-cluster", "genuine-three"),
    *("cluster-set", "cluster-second", "cluster-three"),
)
"""Sources and targets: replica sets, a genuine cluster, and clusters of ours with two or three shards."""


@pytest.fixture(scope="package")
def plain(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two replica sets."""
    directory = tmp_path_factory.mktemp("plain")
    with ExitStack() as sets:
        first, second = [sets.enter_context(replica_set(mongod_binary, directory, each)) for each in ("one", "two")]
        yield first, second


@pytest.fixture
def ends(plain: tuple[str, str], tmp_path: Path) -> Iterator[Ends]:
    """Two replica sets, both empty."""
    found = Ends(*plain, tmp_path)
    found.empty()
    yield found
    found.close()


@pytest.fixture(scope="package")
def genuine(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenuineCluster]:
    """A genuine sharded cluster behind a router of ours."""
    with genuine_cluster(mongod_binary, tmp_path_factory.mktemp("genuine"), routers=1) as running:
        yield running


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster for these tests alone, because each of them drops all databases, including other tests' filled ones."""
    with running_cluster(tmp_path_factory.mktemp("first"), "--routers", "2", "--orphan-cleanup-delay", "0") as running:
        yield running


@pytest.fixture(scope="package")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Another cluster of two shards."""
    with running_cluster(tmp_path_factory.mktemp("second"), "--orphan-cleanup-delay", "0") as running:
        yield running


@pytest.fixture(scope="package")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of three shards."""
    with running_cluster(tmp_path_factory.mktemp("three"), "--shards", "3", "--orphan-cleanup-delay", "0") as running:
        yield running


def uri_of(request: pytest.FixtureRequest, kind: str, number: int) -> str:
    """A deployment of a kind; of two replica sets the one with a number."""
    if kind == "set":
        found: tuple[str, str] = request.getfixturevalue("plain")
        return found[number]
    if kind == "genuine":
        genuine: GenuineCluster = request.getfixturevalue("genuine")
        return genuine.uri()
    running: RunningCluster = request.getfixturevalue(kind)
    return running.uri


@contextmanager
def ends_of(request: pytest.FixtureRequest, kinds: str, directory: Path) -> Iterator[Ends]:
    """A source and a target, both empty, for example ``set-cluster``; see `KINDS`."""
    source, target = kinds.split("-")
    ends = Ends(uri_of(request, source, 0), uri_of(request, target, 1), directory)
    ends.empty()
    try:
        yield ends
    finally:
        ends.close()


@pytest.fixture(params=KINDS)
def every_ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    """Each kind of source and target."""
    with ends_of(request, request.param, tmp_path) as ends:
        yield ends


@pytest.fixture
def to_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    """From a replica set to a cluster of ours."""
    with ends_of(request, "set-cluster", tmp_path) as ends:
        yield ends


@pytest.fixture
def from_genuine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    """From a genuine sharded cluster to a cluster of ours."""
    with ends_of(request, "genuine-cluster", tmp_path) as ends:
        yield ends
