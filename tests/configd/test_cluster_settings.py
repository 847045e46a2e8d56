"""``setFeatureCompatibilityVersion`` and ``_configsvrSetClusterParameter``: the same on all servers, for any client."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Set

VERSION = "setFeatureCompatibilityVersion"
OPTIONS = {"preAndPostImages": {"expireAfterSeconds": 100}}


@pytest.fixture
def mongod(config_set: Set, catalog: CatalogUser) -> Iterator[MongoClient[dict[str, object]]]:
    """The mongod of the config server, whose version is restored."""
    with config_set.members[0].mongod_client() as client:
        yield client
    catalog.run({VERSION: "6.0"})


def version(mongod: MongoClient[dict[str, object]]) -> str:
    found = mongod.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]
    return str(found["version"])


def test_changes_that_are_asked_for_at_once_are_made_one_after_the_other(
    catalog: CatalogUser, shards: dict[str, FakeShard], mongod: MongoClient[dict[str, object]]
) -> None:
    shard = shards["a"]
    shard.held[VERSION] = may_answer = threading.Event()
    with ThreadPoolExecutor() as pool:
        down = pool.submit(catalog.run, {VERSION: "5.0"})
        eventually(lambda: bool(shard.received(VERSION)), what="the first change has reached a shard")
        up = pool.submit(catalog.run, {VERSION: "6.0"})
        try:
            eventually(lambda: version(mongod) == "5.0", what="the first change is in force")
            assert len(shard.received(VERSION)) == 1, "the second one waits"
        finally:
            may_answer.set()
        assert [down.result(20)["ok"], up.result(20)["ok"]] == [1.0, 1.0]
    for each in shards.values():
        assert [command[VERSION] for command in each.received(VERSION)] == ["5.0", "6.0"]
    assert version(mongod) == "6.0"


def test_a_database_moves_while_a_shard_does_not_answer(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    catalog.run({"_configsvrCreateDatabase": "moving_on", "primaryShardId": "a"})
    may_answer = shards["a"].held[VERSION] = threading.Event()
    with ThreadPoolExecutor() as pool:
        down = pool.submit(catalog.run, {VERSION: "5.0"})
        try:
            eventually(lambda: bool(shards["a"].received(VERSION)), what="the change has reached a shard")
            catalog.move_database("moving_on", to="b")
        finally:
            may_answer.set()
        down.result(20)
    catalog.run({VERSION: "6.0"})


def test_a_shard_that_fails_is_told_and_the_others_have_been_asked(
    catalog: CatalogUser, shards: dict[str, FakeShard], mongod: MongoClient[dict[str, object]]
) -> None:
    shards["a"].failures[VERSION] = CommandError(ErrorCode.CannotDowngrade, "not yet")
    with pytest.raises(OperationFailure, match="not yet"):
        catalog.run({VERSION: "5.0"})
    assert len(shards["b"].received(VERSION)) == 1
    shards["a"].failures.clear()
    assert catalog.run({VERSION: "5.0"}, write_concern=None)["ok"]


def test_what_mongod_refuses_reaches_no_shard(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    for command in (
        {VERSION: "9"},
        {VERSION: 5},
        {VERSION: "6.0", "zz": 1},
        {"_configsvrSetClusterParameter": {"z": 1}},
    ):
        with pytest.raises(OperationFailure):
            catalog.run(command)
    assert not any(shard.commands for shard in shards.values())


def test_a_cluster_parameter(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    assert catalog.run({"_configsvrSetClusterParameter": {"changeStreamOptions": OPTIONS}})["ok"]
    for shard in shards.values():
        [command] = shard.received("setClusterParameter")
        assert command["setClusterParameter"] == {"changeStreamOptions": OPTIONS}


def test_a_new_shard_gets_the_settings_of_the_cluster(
    catalog: CatalogUser, mongod: MongoClient[dict[str, object]]
) -> None:
    catalog.run({"_configsvrSetClusterParameter": {"changeStreamOptions": OPTIONS}})
    with fake_shards("late") as fakes:
        late = fakes["late"]
        catalog.run({"_configsvrAddShard": late.connection_string})
        catalog.config.shards.delete_one({"_id": "late"})
        assert [command[VERSION] for command in late.received(VERSION)] == ["6.0"]
        [command] = late.received("setClusterParameter")
        assert command["setClusterParameter"] == {"changeStreamOptions": OPTIONS}
