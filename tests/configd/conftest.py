"""A config daemon with its mongod, and fake shards."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.shardd.mini_cluster import Set, replica_set


@pytest.fixture(scope="session")
def config_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Set]:
    """The config servers of the whole test run: one member."""
    with replica_set(tmp_path_factory.mktemp("configd"), daemon="configd") as running:
        yield running


@pytest.fixture(scope="session")
def config_client(config_set: Set) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of the config daemon."""
    with config_set.members[0].client() as client:
        yield client


@pytest.fixture(scope="session")
def shards(config_client: MongoClient[dict[str, Any]]) -> Iterator[dict[str, FakeShard]]:
    """Two added shards, ``a`` and ``b``."""
    with fake_shards("a", "b") as fakes:
        user = CatalogUser(config_client)
        for fake in fakes.values():
            user.run({"_configsvrAddShard": fake.connection_string})
        yield fakes


@pytest.fixture
def catalog(config_client: MongoClient[dict[str, Any]], shards: dict[str, FakeShard]) -> CatalogUser:
    """Commands to the config daemon of a cluster with two shards."""
    for shard in shards.values():
        shard.failures.clear()
        shard.held.clear()
        shard.commands.clear()
    return CatalogUser(config_client)


@pytest.fixture
def coordinator(config_set: Set) -> Iterator[CatalogUser]:
    """Send commands in one session, which has not been used before."""
    with config_set.members[0].client() as client:
        yield CatalogUser(client)
