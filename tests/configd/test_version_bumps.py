"""Commands that change a version and little else."""

from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.configd.catalog_user import CatalogUser, Sharded

LOW, HIGH = MinKey(), MaxKey()


@pytest.fixture
def sharded(catalog: CatalogUser, request: pytest.FixtureRequest) -> Sharded:
    """A collection with two chunks on one shard."""
    return catalog.shard_collection(f"bumps.{request.node.name}", [(LOW, 0, "a"), (0, HIGH, "a")])


def versions(catalog: CatalogUser, sharded: Sharded) -> list[tuple[int, int]]:
    return [version for _, _, _, version in catalog.bounds(sharded)]


def test_set_allow_migrations_bumps_each_time(catalog: CatalogUser, sharded: Sharded) -> None:
    command = {"_configsvrSetAllowMigrations": sharded.namespace, "collectionUUID": sharded.uuid}
    before = catalog.config.collections.find_one({"_id": sharded.namespace})
    assert before is not None
    assert catalog.run({**command, "allowMigrations": False}) == {"ok": 1.0}
    frozen = catalog.config.collections.find_one({"_id": sharded.namespace})
    assert frozen == {**before, "allowMigrations": False}
    assert versions(catalog, sharded) == [(1, 0), (1, 2)]
    catalog.run({**command, "allowMigrations": True})
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) == before
    assert versions(catalog, sharded) == [(1, 0), (1, 3)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"_configsvrSetAllowMigrations": "bumps.unknown"}, ErrorCode.NamespaceNotSharded),
        ({"collectionUUID": Binary.from_uuid(uuid4())}, ErrorCode.InvalidUUID),
    ],
)
def test_set_allow_migrations_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    sharded = catalog.shard_collection(f"bumps.refuses_{ObjectId()}")
    with pytest.raises(OperationFailure) as failure:
        catalog.run({"_configsvrSetAllowMigrations": sharded.namespace, "allowMigrations": False, **change})
    assert failure.value.code == code
    assert versions(catalog, sharded) == [(1, 0)]


def test_ensure_chunk_version_raises_the_major_version_once(catalog: CatalogUser, sharded: Sharded) -> None:
    command = {
        "_configsvrEnsureChunkVersionIsGreaterThan": 1,
        "nss": sharded.namespace,
        "minKey": {"x": LOW},
        "maxKey": {"x": 0},
        "version": sharded.version(Timestamp(1, 0)),
        "collectionUUID": sharded.uuid,
    }
    assert catalog.run(command) == {"ok": 1.0}
    assert versions(catalog, sharded) == [(2, 0), (1, 1)]
    assert catalog.run(command) == {"ok": 1.0}
    assert versions(catalog, sharded) == [(2, 0), (1, 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"collectionUUID": Binary.from_uuid(uuid4())},
        {"maxKey": {"x": 1}},
        {"version": {"t": Timestamp(1, 1), "e": ObjectId(), "v": Timestamp(1, 0)}},
    ],
)
def test_ensure_chunk_version_has_nothing_to_do(catalog: CatalogUser, change: dict[str, Any]) -> None:
    sharded = catalog.shard_collection(f"bumps.nothing_{ObjectId()}", [(LOW, 0, "a"), (0, HIGH, "a")])
    command = {
        "_configsvrEnsureChunkVersionIsGreaterThan": 1,
        "nss": sharded.namespace,
        "minKey": {"x": LOW},
        "maxKey": {"x": 0},
        "version": sharded.version(Timestamp(1, 0)),
        "collectionUUID": sharded.uuid,
        **change,
    }
    assert catalog.run(command) == {"ok": 1.0}
    assert versions(catalog, sharded) == [(1, 0), (1, 1)]


def test_clear_jumbo_flag(catalog: CatalogUser, sharded: Sharded) -> None:
    command = {
        "_configsvrClearJumboFlag": sharded.namespace,
        "epoch": sharded.epoch,
        "minKey": {"x": LOW},
        "maxKey": {"x": 0},
    }
    catalog.run(command)
    assert versions(catalog, sharded) == [(1, 0), (1, 1)]
    catalog.config.chunks.update_one({"uuid": sharded.uuid, "max": {"x": 0}}, {"$set": {"jumbo": True}})
    catalog.run(command)
    assert versions(catalog, sharded) == [(2, 0), (1, 1)]
    assert "jumbo" not in catalog.chunks(sharded)[0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"_configsvrClearJumboFlag": "bumps.unknown"}, ErrorCode.NamespaceNotSharded),
        ({"epoch": ObjectId()}, ErrorCode.StaleEpoch),
        ({"minKey": {"x": 77}}, 51262),
    ],
)
def test_clear_jumbo_flag_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    sharded = catalog.shard_collection(f"bumps.jumbo_{ObjectId()}", [(LOW, 0, "a"), (0, HIGH, "a")])
    command = {
        "_configsvrClearJumboFlag": sharded.namespace,
        "epoch": sharded.epoch,
        "minKey": {"x": LOW},
        "maxKey": {"x": 0},
        **change,
    }
    with pytest.raises(OperationFailure) as failure:
        catalog.run(command)
    assert failure.value.code == code
