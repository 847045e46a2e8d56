"""Zones: which shards belong to them, and which ranges."""

from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.configd.catalog_user import CatalogUser
from tests.shardd.mini_cluster import Set


@pytest.fixture
def zone(catalog: CatalogUser) -> str:
    """A zone to which shard ``a`` belongs."""
    name = f"zone-{ObjectId()}"
    catalog.run({"_configsvrAddShardToZone": "a", "zone": name})
    return name


def zones_of(catalog: CatalogUser, shard: str) -> list[str]:
    entry = catalog.config.shards.find_one({"_id": shard})
    assert entry is not None
    return list(entry.get("tags", []))


def test_add_shard_to_zone_twice_adds_it_once(catalog: CatalogUser, zone: str) -> None:
    catalog.run({"_configsvrAddShardToZone": "a", "zone": zone})
    assert zones_of(catalog, "a").count(zone) == 1


def test_remove_shard_from_zone(catalog: CatalogUser, zone: str) -> None:
    command = {"_configsvrRemoveShardFromZone": "a", "zone": zone}
    assert catalog.run(command) == {"ok": 1.0}
    assert zone not in zones_of(catalog, "a")
    assert catalog.run(command) == {"ok": 1.0}


@pytest.mark.parametrize("name", ["_configsvrAddShardToZone", "_configsvrRemoveShardFromZone"])
def test_zones_of_an_unknown_shard(catalog: CatalogUser, name: str) -> None:
    with pytest.raises(OperationFailure, match="shard c does not exist") as failure:
        catalog.run({name: "c", "zone": "any"})
    assert failure.value.code == ErrorCode.ShardNotFound


def test_the_last_shard_cannot_leave_a_zone_with_ranges(catalog: CatalogUser, zone: str) -> None:
    give_range = {"_configsvrUpdateZoneKeyRange": f"zones.{zone}", "min": {"x": 0}, "max": {"x": 5}}
    catalog.run({**give_range, "zone": zone})
    remove = {"_configsvrRemoveShardFromZone": "a", "zone": zone}
    with pytest.raises(OperationFailure, match="cannot remove a shard from zone") as failure:
        catalog.run(remove)
    assert failure.value.code == ErrorCode.ZoneStillInUse
    catalog.run({"_configsvrAddShardToZone": "b", "zone": zone})
    assert catalog.run(remove) == {"ok": 1.0}


def test_update_zone_key_range_extends_bounds_to_the_shard_key(catalog: CatalogUser, zone: str) -> None:
    namespace = f"zones.compound_{zone}"
    sharded = catalog.shard_collection(namespace)
    catalog.config.collections.update_one({"_id": namespace}, {"$set": {"key": {"x": 1, "y": 1}}})
    catalog.run({"_configsvrUpdateZoneKeyRange": namespace, "min": {"x": 0}, "max": {"x": 5}, "zone": zone})
    [tag] = catalog.config.tags.find({"ns": namespace})
    assert isinstance(tag.pop("_id"), ObjectId)
    assert tag == {"ns": namespace, "min": {"x": 0, "y": MinKey()}, "max": {"x": 5, "y": MinKey()}, "tag": zone}
    assert sharded.namespace == namespace


def test_the_same_range_can_change_its_zone(catalog: CatalogUser, zone: str) -> None:
    catalog.run({"_configsvrAddShardToZone": "a", "zone": f"{zone}-other"})
    give_range = {"_configsvrUpdateZoneKeyRange": f"zones.{zone}", "min": {"x": 0}, "max": {"x": 5}}
    catalog.run({**give_range, "zone": zone})
    [before] = catalog.config.tags.find({"ns": f"zones.{zone}"})
    catalog.run({**give_range, "min": {"x": 0.0}, "zone": f"{zone}-other"})
    [after] = catalog.config.tags.find({"ns": f"zones.{zone}"})
    assert after == {**before, "tag": f"{zone}-other"}


def test_a_null_zone_removes_the_range(catalog: CatalogUser, zone: str) -> None:
    give_range = {"_configsvrUpdateZoneKeyRange": f"zones.{zone}", "min": {"x": 0}, "max": {"x": 5}}
    catalog.run({**give_range, "zone": zone})
    assert catalog.run({**give_range, "zone": None}) == {"ok": 1.0}
    assert catalog.run({**give_range, "zone": None}) == {"ok": 1.0}
    assert catalog.config.tags.count_documents({"ns": f"zones.{zone}"}) == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"zone": "no such zone"}, ErrorCode.ZoneNotFound),
        ({"min": {"x": 3}, "max": {"x": 9}}, ErrorCode.RangeOverlapConflict),
        ({"min": {"x": MinKey()}, "max": {"x": MaxKey()}}, ErrorCode.RangeOverlapConflict),
        ({"min": {"y": 3}, "max": {"y": 9}}, ErrorCode.ShardKeyNotFound),
        ({"min": {"x": 9}, "max": {"x": 3}}, ErrorCode.FailedToParse),
        ({"min": 1}, ErrorCode.TypeMismatch),
    ],
)
def test_update_zone_key_range_refuses(catalog: CatalogUser, zone: str, change: dict[str, Any], code: int) -> None:
    namespace = f"zones.sharded_{zone}"
    catalog.shard_collection(namespace)
    command = {"_configsvrUpdateZoneKeyRange": namespace, "min": {"x": 1}, "max": {"x": 5}, "zone": zone}
    catalog.run(command)
    with pytest.raises(OperationFailure) as failure:
        catalog.run({**command, **change})
    assert failure.value.code == code
    assert catalog.config.tags.count_documents({"ns": namespace}) == 1


@pytest.mark.parametrize("bound", [1, "a"])
def test_a_range_of_a_hashed_key_has_hashes(catalog: CatalogUser, zone: str, bound: object) -> None:
    namespace = f"zones.hashed_{zone}_{bound}"
    catalog.shard_collection(namespace, direction="hashed")
    command = {"_configsvrUpdateZoneKeyRange": namespace, "min": {"x": MinKey()}, "max": {"x": Int64(5)}, "zone": zone}
    catalog.run(command)
    with pytest.raises(
        OperationFailure, match="which corresponds to a hashed field in the shard key pattern"
    ) as failure:
        catalog.run({**command, "min": {"x": bound}, "max": {"x": MaxKey()}})
    assert failure.value.code == ErrorCode.InvalidOptions


@pytest.mark.parametrize(
    ("direction", "bounds", "message"),
    [
        (
            1,
            {"min": {"x": 1, "y": 1}, "max": {"x": 2, "y": 1}},
            "does not match with the shard key of the existing zone",
        ),
        (1, {"min": {"y": 1}, "max": {"y": 2}}, "the proposed shard key { x: 1 }"),
        ("hashed", {"min": {"x": 1}, "max": {"x": 2}}, "not of type NumberLong, MinKey or MaxKey"),
    ],
)
def test_a_collection_is_not_sharded_unlike_its_zones(
    catalog: CatalogUser, zone: str, direction: object, bounds: dict[str, Any], message: str
) -> None:
    """Not even if they have been defined since its primary shard looked."""
    namespace = f"zones.{zone}"
    catalog.run({"_configsvrUpdateZoneKeyRange": namespace, **bounds, "zone": zone})
    with pytest.raises(OperationFailure, match=message) as failure:
        catalog.shard_collection(namespace, direction=direction)
    assert failure.value.code == ErrorCode.InvalidOptions
    assert catalog.config.collections.find_one({"_id": namespace}) is None


def test_ranges_on_other_fields_of_a_collection_that_is_not_sharded(catalog: CatalogUser, zone: str) -> None:
    command = {"_configsvrUpdateZoneKeyRange": f"zones.{zone}", "min": {"x": 1}, "max": {"x": 5}, "zone": zone}
    catalog.run(command)
    with pytest.raises(OperationFailure, match="do not match those of keyPattern") as failure:
        catalog.run({**command, "min": {"a": 1}, "max": {"a": 2}})
    assert failure.value.code == 16634


def test_remove_tags(config_set: Set, catalog: CatalogUser, zone: str) -> None:
    catalog.run({"_configsvrUpdateZoneKeyRange": f"zones.{zone}", "min": {"x": 1}, "max": {"x": 5}, "zone": zone})
    remove = {"_configsvrRemoveTags": f"zones.{zone}"}
    with pytest.raises(OperationFailure, match="must be run as a retryable write") as failure:
        catalog.client.admin.command({**remove, "writeConcern": {"w": "majority"}}, session=None)
    assert failure.value.code == 5748800
    with config_set.members[0].client() as client:  # whose session has not been used
        assert CatalogUser(client).run({**remove, "txnNumber": Int64(1)})["ok"] == 1.0
    assert catalog.config.tags.count_documents({"ns": f"zones.{zone}"}) == 0
