"""A replica set with daemons, started once."""

from collections.abc import Iterator

import pytest

from tests.shardd.mini_cluster import Member, Set, replica_set


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    """A replica set of one mongod with a shard daemon in front of it."""
    with replica_set(tmp_path_factory.mktemp("alone")) as started:
        yield started


@pytest.fixture
def member(alone: Set) -> Member:
    """The one member."""
    return alone.members[0]
