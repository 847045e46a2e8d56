"""Adding and removing collections and databases for the shards that create and drop them."""

import time
from itertools import pairwise
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


def new_collection(namespace: str) -> Sharded:
    return Sharded(namespace, Binary.from_uuid(uuid4()), ObjectId(), Timestamp(int(time.time()), 1))


def test_create_stores_the_documents_as_they_were_sent(catalog: CatalogUser) -> None:
    sharded = new_collection("ddl.entered")
    command = catalog.create_command(sharded, [(LOW, 0, "a"), (0, HIGH, "b")])
    command["collection"]["timeseriesFields"] = {"timeField": "t", "granularity": "hours"}
    assert catalog.run(command) == {"ok": 1.0}
    assert catalog.config.collections.find_one({"_id": "ddl.entered"}) == command["collection"]
    assert catalog.chunks(sharded) == command["chunks"]


def test_create_again_changes_nothing(catalog: CatalogUser) -> None:
    sharded = new_collection("ddl.again")
    command = catalog.create_command(sharded, [(LOW, HIGH, "a")])
    catalog.run(command)
    catalog.split(sharded, LOW, HIGH, 0)
    assert catalog.run(command) == {"ok": 1.0}
    assert len(catalog.chunks(sharded)) == 2


def test_create_replaces_the_chunks_of_an_attempt_that_ended_half_way(catalog: CatalogUser) -> None:
    sharded = new_collection("ddl.half_way")
    catalog.config.chunks.insert_one(
        {"uuid": sharded.uuid, "min": {"x": LOW}, "max": {"x": 7}, "shard": "a", "lastmod": Timestamp(1, 0)}
    )
    command = catalog.create_command(sharded, [(LOW, HIGH, "a")])
    catalog.run(command)
    assert catalog.chunks(sharded) == command["chunks"]


def test_create_of_another_collection_with_the_name_is_refused(catalog: CatalogUser) -> None:
    catalog.run(catalog.create_command(new_collection("ddl.taken"), [(LOW, HIGH, "a")]))
    other = new_collection("ddl.taken")
    with pytest.raises(OperationFailure, match="is sharded already") as failure:
        catalog.run(catalog.create_command(other, [(LOW, HIGH, "a")]))
    assert failure.value.code == ErrorCode.AlreadyInitialized
    assert not catalog.chunks(other)


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ([(LOW, 0, "a")], ErrorCode.ConflictingOperationInProgress),
        ([(LOW, 0, "a"), (1, HIGH, "a")], ErrorCode.ConflictingOperationInProgress),
        ([(LOW, 1, "a"), (0, HIGH, "a")], ErrorCode.ConflictingOperationInProgress),
        ([], ErrorCode.ConflictingOperationInProgress),
    ],
)
def test_create_refuses_chunks_that_do_not_tile(
    catalog: CatalogUser, bounds: list[tuple[Any, Any, str]], code: int
) -> None:
    sharded = new_collection("ddl.untiled")
    with pytest.raises(OperationFailure) as failure:
        catalog.run(catalog.create_command(sharded, bounds))
    assert failure.value.code == code
    assert catalog.config.collections.find_one({"_id": "ddl.untiled"}) is None


def test_create_refuses_bounds_that_shards_could_not_persist(catalog: CatalogUser) -> None:
    sharded, point = new_collection("ddl.large"), "a" * 8_370_000
    with pytest.raises(OperationFailure, match="bounds of a chunk are too large") as failure:
        catalog.run(catalog.create_command(sharded, [(LOW, point, "a"), (point, HIGH, "a")]))
    assert failure.value.code == ErrorCode.BSONObjectTooLarge
    assert not catalog.chunks(sharded)


@pytest.mark.exhaustive
def test_commands_on_chunks_with_large_bounds_are_small(catalog: CatalogUser) -> None:
    """Though they have no room for the bounds of two that they read: the newest one, and the first of each shard."""
    points = [LOW, *(letter * 5_300_000 for letter in "amz"), HIGH]
    sharded = new_collection("ddl.bounds")
    for number, ((low, high), shard) in enumerate(zip(pairwise(points), "abba", strict=True)):
        command = catalog.create_command(sharded, [(low, high, shard)])
        catalog.config.chunks.insert_one(
            {**command["chunks"][0], "lastmod": Timestamp(1, 9 if number == 2 else number)}
        )
    catalog.config.collections.insert_one(command["collection"])
    for allowed in (False, True):
        catalog.run({"_configsvrSetAllowMigrations": sharded.namespace, "allowMigrations": allowed})
    assert [chunk["lastmod"] for chunk in catalog.chunks(sharded)] == [Timestamp(1, each) for each in (0, 1, 11, 3)]


def test_create_with_many_chunks_uses_several_inserts(catalog: CatalogUser) -> None:
    """More documents than fit in one insert."""
    count = 25_000
    bounds = [LOW, *range(count - 1), HIGH]
    sharded = catalog.shard_collection("ddl.many", [(low, high, "a") for low, high in pairwise(bounds)])
    assert catalog.config.chunks.count_documents({"uuid": sharded.uuid}) == count
    drop = {"_configsvrCommitDropCollection": "ddl.many", "collectionUUID": {"uuid": sharded.uuid}}
    catalog.run(drop)
    assert catalog.config.chunks.count_documents({"uuid": sharded.uuid}) == 0


def test_drop_collection_removes_everything(catalog: CatalogUser) -> None:
    sharded = new_collection("ddl.dropped")
    catalog.run(catalog.create_command(sharded, [(LOW, 0, "a"), (0, HIGH, "b")]))
    catalog.config.tags.insert_one({"ns": "ddl.dropped", "min": {"x": LOW}, "max": {"x": 0}, "tag": "z"})
    drop = {"_configsvrCommitDropCollection": "ddl.dropped", "collectionUUID": {"uuid": sharded.uuid}}
    assert catalog.run(drop) == {"ok": 1.0}
    assert catalog.config.collections.find_one({"_id": "ddl.dropped"}) is None
    assert not catalog.chunks(sharded)
    assert catalog.config.tags.find_one({"ns": "ddl.dropped"}) is None
    assert catalog.run(drop) == {"ok": 1.0}


def test_drop_collection_again_spares_one_created_since(catalog: CatalogUser) -> None:
    old = new_collection("ddl.reborn")
    catalog.run(catalog.create_command(old, [(LOW, HIGH, "a")]))
    drop = {"_configsvrCommitDropCollection": "ddl.reborn", "collectionUUID": {"uuid": old.uuid}}
    catalog.run(drop)
    new = new_collection("ddl.reborn")
    catalog.run(catalog.create_command(new, [(LOW, HIGH, "a")]))
    catalog.config.tags.insert_one({"ns": "ddl.reborn", "min": {"x": LOW}, "max": {"x": 0}, "tag": "z"})
    catalog.run(drop)
    assert len(catalog.chunks(new)) == 1
    assert catalog.config.tags.find_one({"ns": "ddl.reborn"}) is not None


def test_drop_collection_again_spares_zones_given_since(catalog: CatalogUser) -> None:
    sharded = new_collection("ddl.zoned")
    catalog.run(catalog.create_command(sharded, [(LOW, HIGH, "a")]))
    drop = {"_configsvrCommitDropCollection": "ddl.zoned", "collectionUUID": {"uuid": sharded.uuid}}
    catalog.run(drop)
    catalog.config.tags.insert_one({"ns": "ddl.zoned", "min": {"x": LOW}, "max": {"x": 0}, "tag": "z"})
    catalog.run(drop)
    assert catalog.config.tags.find_one({"ns": "ddl.zoned"}) is not None


def test_drop_database_removes_it_and_the_rest_of_its_collections(catalog: CatalogUser) -> None:
    version = catalog.run({"_configsvrCreateDatabase": "drop-me", "primaryShardId": "a"})["databaseVersion"]
    sharded, other = new_collection("drop-me.left"), new_collection("drop-me-not.other")
    catalog.run(catalog.create_command(sharded, [(LOW, HIGH, "a")]))
    catalog.run(catalog.create_command(other, [(LOW, HIGH, "a")]))
    drop = {"_configsvrCommitDropDatabase": "drop-me", "databaseVersion": version}
    assert catalog.run(drop) == {"ok": 1.0}
    assert catalog.config.databases.find_one({"_id": "drop-me"}) is None
    assert catalog.config.collections.find_one({"_id": "drop-me.left"}) is None
    assert not catalog.chunks(sharded)
    assert len(catalog.chunks(other)) == 1
    assert catalog.run(drop) == {"ok": 1.0}


def test_drop_database_again_spares_one_created_since(catalog: CatalogUser) -> None:
    create = {"_configsvrCreateDatabase": "db-reborn", "primaryShardId": "a"}
    old = catalog.run(create)["databaseVersion"]
    drop = {"_configsvrCommitDropDatabase": "db-reborn", "databaseVersion": old}
    catalog.run(drop)
    new = catalog.run(create)["databaseVersion"]
    assert new["timestamp"] > old["timestamp"]
    catalog.run(drop)
    assert catalog.config.databases.find_one({"_id": "db-reborn"}) is not None


def refine(catalog: CatalogUser, sharded: Sharded, key: dict[str, Any]) -> dict[str, Any]:
    return catalog.run({"_configsvrRefineCollectionShardKey": sharded.namespace, "key": key, "epoch": sharded.epoch})


def test_a_key_is_refined_once(catalog: CatalogUser) -> None:
    sharded = catalog.shard_collection("ddl.refined", [(LOW, 0, "a"), (0, HIGH, "b")])
    for _ in range(2):
        assert refine(catalog, sharded, {"x": 1, "y": 1}) == {"ok": 1.0}
    low, high = catalog.chunks(sharded)
    assert (low["min"], low["max"]) == ({"x": LOW, "y": LOW}, {"x": 0, "y": LOW})
    assert (high["min"], high["max"]) == (low["max"], {"x": HIGH, "y": HIGH})
    with pytest.raises(OperationFailure) as stale:
        refine(catalog, sharded, {"x": 1, "y": 1, "z": 1})
    assert stale.value.code == ErrorCode.StaleEpoch


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.exhaustive)])
def test_any_number_of_chunks_is_refined(catalog: CatalogUser, count: int) -> None:
    points = [LOW, *range(count - 1), HIGH]
    sharded = catalog.shard_collection(f"ddl.refined_{count}", [(low, high, "a") for low, high in pairwise(points)])
    assert refine(catalog, sharded, {"x": 1, "y.z": 1, "w": "hashed"}) == {"ok": 1.0}
    added = {"y.z": LOW, "w": LOW}
    bounds = [({"x": low, **added}, {"x": high, **added}) for low, high in pairwise(points)]
    bounds[-1] = bounds[-1][0], {"x": HIGH, "y.z": HIGH, "w": HIGH}
    assert [(chunk["min"], chunk["max"]) for chunk in catalog.chunks(sharded)] == bounds
    entry = catalog.config.collections.find_one({"_id": sharded.namespace})
    assert entry is not None
    assert "chunksBeingRefined" not in entry


@pytest.mark.parametrize("count", [300, pytest.param(12_000, marks=pytest.mark.exhaustive)])
def test_any_number_of_zones_with_long_bounds_is_refined(catalog: CatalogUser, count: int) -> None:
    """The mongod's cache is too small for a transaction that changes all of the exhaustive ones."""
    sharded = catalog.shard_collection(f"ddl.refined_zones_{count}", [(LOW, HIGH, "a")])
    points = [LOW, *(f"{number:06}{'x' * 500}" for number in range(count - 1)), HIGH]
    zones = [{"ns": sharded.namespace, "min": {"x": low}, "max": {"x": high}} for low, high in pairwise(points)]
    catalog.config.tags.insert_many({**each, "tag": f"z{number % 5}"} for number, each in enumerate(zones))
    assert refine(catalog, sharded, {"x": 1, "y.z": 1}) == {"ok": 1.0}
    refined = list(catalog.config.tags.find({"ns": sharded.namespace}, {"_id": 0}).sort("min", 1))
    assert [each["min"] for each in refined] == [{"x": point, "y.z": LOW} for point in points[:-1]]
    assert [each["max"] for each in refined[:-1]] == [each["min"] for each in refined[1:]]
    assert refined[-1] == {
        **{"ns": sharded.namespace, "min": {"x": points[-2], "y.z": LOW}, "max": {"x": HIGH, "y.z": HIGH}},
        "tag": f"z{(count - 1) % 5}",
    }


def test_a_zone_changes_while_others_are_refined(catalog: CatalogUser) -> None:
    """As after a fail-over, before the coordinator has asked again."""
    sharded = catalog.shard_collection("ddl.zone_half", [(LOW, HIGH, "a")])
    catalog.run({"_configsvrAddShardToZone": "a", "zone": "half"})
    for low, high in pairwise([LOW, 0, 5]):
        catalog.config.tags.insert_one(
            {"ns": sharded.namespace, "min": {"x": low}, "max": {"x": high}, "tag": f"from {low}"}
        )
    catalog.config.collections.update_one(
        {"_id": sharded.namespace}, {"$set": {"key": {"x": 1, "y": 1}, "chunksBeingRefined": {"x": 1}}}
    )
    for low, high, zone in [(0, 5, None), (7, 9, "half")]:
        bounds = {"min": {"x": low}, "max": {"x": high}}
        catalog.run({"_configsvrUpdateZoneKeyRange": sharded.namespace, **bounds, "zone": zone})
    assert refine(catalog, sharded, {"x": 1, "y": 1}) == {"ok": 1.0}
    zones = catalog.config.tags.find({"ns": sharded.namespace}).sort("min", 1)
    assert [(each["min"], each["max"], each["tag"]) for each in zones] == [
        ({"x": LOW, "y": LOW}, {"x": 0, "y": LOW}, f"from {LOW}"),
        ({"x": 7, "y": LOW}, {"x": 9, "y": LOW}, "half"),
    ]


def test_a_refinement_that_ended_halfway_is_completed(catalog: CatalogUser) -> None:
    sharded = catalog.shard_collection("ddl.half", [(LOW, 0, "a"), (0, 5, "a"), (5, HIGH, "b")])
    catalog.config.chunks.update_one({"uuid": sharded.uuid, "min.x": 0}, {"$set": {"jumbo": True}})
    catalog.config.collections.update_one(
        {"_id": sharded.namespace}, {"$set": {"key": {"x": 1, "y": 1}, "chunksBeingRefined": {"x": 1}}}
    )
    refined = {"min": {"x": LOW, "y": LOW}, "max": {"x": 0, "y": LOW}}
    catalog.config.chunks.update_one({"uuid": sharded.uuid, "min.x": LOW}, {"$set": refined})
    assert refine(catalog, sharded, {"x": 1, "y": 1}) == {"ok": 1.0}
    chunks = catalog.chunks(sharded)
    assert [chunk["min"] for chunk in chunks] == [{"x": each, "y": LOW} for each in (LOW, 0, 5)]
    assert [chunk["max"] for chunk in chunks] == [{"x": 0, "y": LOW}, {"x": 5, "y": LOW}, {"x": HIGH, "y": HIGH}]
    assert not any("jumbo" in chunk for chunk in chunks)


def test_a_chunk_is_split_while_others_are_refined(catalog: CatalogUser) -> None:
    """As after a fail-over, before the coordinator has asked again."""
    sharded = catalog.shard_collection("ddl.split_half", [(LOW, 0, "a"), (0, HIGH, "a")])
    catalog.config.collections.update_one(
        {"_id": sharded.namespace}, {"$set": {"key": {"x": 1, "y": 1}, "chunksBeingRefined": {"x": 1}}}
    )
    catalog.run(
        {
            "_configsvrCommitChunkSplit": sharded.namespace,
            "collEpoch": sharded.epoch,
            "min": {"x": 0, "y": LOW},
            "max": {"x": HIGH, "y": HIGH},
            "splitPoints": [{"x": 5, "y": 1}],
            "shard": "a",
        }
    )
    assert refine(catalog, sharded, {"x": 1, "y": 1}) == {"ok": 1.0}
    assert [chunk["min"] for chunk in catalog.chunks(sharded)] == [
        *({"x": LOW, "y": LOW}, {"x": 0, "y": LOW}, {"x": 5, "y": 1})
    ]
