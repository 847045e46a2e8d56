"""``_configsvrCreateDatabase``."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard


def test_create_database_returns_its_version(catalog: CatalogUser) -> None:
    reply = catalog.run({"_configsvrCreateDatabase": "created", "primaryShardId": "b"})
    entry = catalog.config.databases.find_one({"_id": "created"})
    assert entry == {"_id": "created", "primary": "b", "partitioned": False, "version": reply["databaseVersion"]}
    assert list(reply["databaseVersion"]) == ["uuid", "timestamp", "lastMod"]
    assert reply["databaseVersion"]["lastMod"] == 1


def test_create_database_twice_changes_nothing(catalog: CatalogUser) -> None:
    first = catalog.run({"_configsvrCreateDatabase": "twice", "enableSharding": True})
    assert catalog.run({"_configsvrCreateDatabase": "twice"}) == first


def test_create_database_leaves_one_entry_in_the_changelog(catalog: CatalogUser) -> None:
    for _ in range(2):
        catalog.run({"_configsvrCreateDatabase": "noted", "primaryShardId": "b"})
    [change] = catalog.changes("noted")
    assert (change["what"], change["details"], change["shard"]) == ("createDatabase", {"primary": "b"}, "config")


def test_create_database_refreshes_the_primary_shard(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    catalog.run({"_configsvrCreateDatabase": "told", "primaryShardId": "a"})
    [told] = shards["a"].received("_flushDatabaseCacheUpdates")
    assert told["_flushDatabaseCacheUpdates"] == "told"
    assert not shards["b"].received("_flushDatabaseCacheUpdates")


def test_create_database_succeeds_if_the_primary_shard_cannot_be_reached(
    catalog: CatalogUser, shards: dict[str, FakeShard]
) -> None:
    shards["a"].failures["_flushDatabaseCacheUpdates"] = CommandError(ErrorCode.InternalError, "not now")
    assert catalog.run({"_configsvrCreateDatabase": "untold", "primaryShardId": "a"})["ok"] == 1.0


@pytest.mark.parametrize(("size_a", "size_b", "chosen"), [(10, 20, "a"), (20, 10, "b")])
def test_create_database_chooses_the_shard_with_least_data(
    catalog: CatalogUser, shards: dict[str, FakeShard], size_a: int, size_b: int, chosen: str
) -> None:
    shards["a"].databases = {"x": size_a}
    shards["b"].databases = {"x": size_b}
    name = f"least_{size_a}_{size_b}"
    catalog.run({"_configsvrCreateDatabase": name})
    entry = catalog.config.databases.find_one({"_id": name})
    assert entry is not None
    assert entry["primary"] == chosen


def test_create_database_fails_if_a_shard_does_not_report_its_size(
    catalog: CatalogUser, shards: dict[str, FakeShard]
) -> None:
    shards["b"].failures["listDatabases"] = CommandError(ErrorCode.InternalError, "not now")
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrCreateDatabase": "unsized"})
    assert failure.value.code == ErrorCode.InternalError
    assert catalog.config.databases.find_one({"_id": "unsized"}) is None


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ({"_configsvrCreateDatabase": "EXISTING"}, ErrorCode.DatabaseDifferCase, "just differ on case  have: existing"),
        (
            {"_configsvrCreateDatabase": "existing", "primaryShardId": "b"},
            ErrorCode.NamespaceExists,
            "database already created on a primary which is different from b",
        ),
        ({"_configsvrCreateDatabase": "new", "primaryShardId": "c"}, ErrorCode.ShardNotFound, "Shard c not found"),
        ({"_configsvrCreateDatabase": "n w"}, ErrorCode.InvalidNamespace, "Invalid db name specified: n w"),
        ({"_configsvrCreateDatabase": ""}, ErrorCode.InvalidNamespace, "Invalid db name specified: "),
        ({"_configsvrCreateDatabase": "x" * 64}, ErrorCode.InvalidNamespace, "Invalid db name specified: "),
        ({"_configsvrCreateDatabase": "admin"}, ErrorCode.InvalidOptions, "Cannot manually create database 'admin'"),
        ({"_configsvrCreateDatabase": "local"}, ErrorCode.InvalidOptions, "Cannot manually create database 'local'"),
        ({"_configsvrCreateDatabase": 5}, ErrorCode.TypeMismatch, "is the wrong type 'int', expected type 'string'"),
    ],
)
def test_create_database_refuses(catalog: CatalogUser, command: dict[str, object], code: int, message: str) -> None:
    catalog.run({"_configsvrCreateDatabase": "existing", "primaryShardId": "a"})
    with pytest.raises(OperationFailure, match=re.escape(message)) as failure:
        catalog.run(command)
    assert failure.value.code == code


def test_create_database_takes_names_literally(catalog: CatalogUser) -> None:
    """A dot in a regular expression would make ``a+b`` and others match each other."""
    catalog.run({"_configsvrCreateDatabase": "lit+eral", "primaryShardId": "a"})
    assert catalog.run({"_configsvrCreateDatabase": "litteral", "primaryShardId": "a"})["ok"] == 1.0


def test_create_database_needs_no_version_for_config(catalog: CatalogUser) -> None:
    reply = catalog.run({"_configsvrCreateDatabase": "config"})
    assert reply["databaseVersion"]["lastMod"] == 0
    assert catalog.config.databases.find_one({"_id": "config"}) is None


def test_concurrent_create_database_creates_it_once(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(catalog.run, [{"_configsvrCreateDatabase": "crowded"}] * 8))
    assert all(reply == replies[0] for reply in replies)
    told = [command for shard in shards.values() for command in shard.received("_flushDatabaseCacheUpdates")]
    assert len(told) == 1


def test_concurrent_create_databases_that_differ_in_case_create_one(catalog: CatalogUser) -> None:
    def create(name: str) -> int:
        try:
            catalog.run({"_configsvrCreateDatabase": name})
        except OperationFailure as error:
            return error.code or 0
        return 0

    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(create, ["racing", "Racing", "rAcing", "raCing"]))
    assert sorted(codes) == [0, *[ErrorCode.DatabaseDifferCase] * 3]
