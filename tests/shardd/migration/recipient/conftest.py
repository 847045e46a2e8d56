"""A real recipient, and a donor simulated by the tests."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.configd.fake_shard import serving
from tests.shardd.migration.recipient.fake_donor import FakeDonor
from tests.shardd.migration.recipient.receiving import Receiving
from tests.shardd.mini_cluster import MiniCluster, mini_cluster

_names = count()

Receive = Callable[..., Receiving]


@pytest.fixture(scope="session")
def one_shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MiniCluster, FakeDonor]]:
    """A cluster of one real shard, ``sh0``, and a simulated one, ``donor``."""
    with serving(FakeDonor, "donor") as fakes, mini_cluster(tmp_path_factory.mktemp("one"), shards=1) as cluster:
        donor = fakes["donor"]
        with cluster.config.members[0].mongod_client() as config:
            config.config.shards.insert_one({"_id": "donor", "host": donor.connection_string, "state": 1})
        yield cluster, donor


@pytest.fixture
def receive(one_shard: tuple[MiniCluster, FakeDonor]) -> Iterator[Receive]:
    """Creates migrations that have not begun; migrations in progress at the end are aborted."""
    cluster, donor = one_shard
    donor.reset()
    made: list[Receiving] = []

    def make(**options: Any) -> Receiving:  # noqa: ANN401 - whatever Receiving takes
        made.append(Receiving(cluster, donor, **options))
        return made[-1]

    yield make
    for event in donor.held.values():
        event.set()
    donor.held.clear()
    for each in made:
        if each.session_id:
            each.end()


@pytest.fixture
def receiving(receive: Receive) -> Receiving:
    """One migration that has not begun."""
    return receive()
