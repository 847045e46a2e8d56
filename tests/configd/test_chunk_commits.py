"""Splits, merges and migrations, committed at the request of shards."""

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
    """The test's own collection with one chunk, on shard ``a``."""
    return catalog.shard_collection(f"chunks.{request.node.name}")


def test_split_gives_every_part_a_new_minor_version(catalog: CatalogUser, sharded: Sharded) -> None:
    [before] = catalog.chunks(sharded)
    reply = catalog.split(sharded, LOW, HIGH, 0, 10)
    assert reply == {
        "collectionVersion": sharded.version(Timestamp(1, 3)),
        "shardVersion": sharded.version(Timestamp(1, 3)),
        "ok": 1.0,
    }
    assert catalog.bounds(sharded) == [
        (LOW, 0, "a", (1, 1)),
        (0, 10, "a", (1, 2)),
        (10, HIGH, "a", (1, 3)),
    ]
    first, second, third = catalog.chunks(sharded)
    assert first["_id"] == before["_id"]
    assert first["history"] == second["history"] == third["history"] == before["history"]
    assert [list(chunk) for chunk in (first, second)] == [
        ["_id", "uuid", "min", "max", "shard", "lastmod", "jumbo", "history"]
    ] * 2


def test_split_again_is_confirmed(catalog: CatalogUser, sharded: Sharded) -> None:
    first = catalog.split(sharded, LOW, HIGH, 0, 10)
    chunks = catalog.chunks(sharded)
    assert catalog.split(sharded, LOW, HIGH, 0, 10) == first
    assert catalog.chunks(sharded) == chunks
    assert len(catalog.changes(sharded.namespace)) == 3


def test_split_in_two_is_logged_as_one_split(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 5)
    [change] = catalog.changes(sharded.namespace)
    assert change["what"] == "split"
    assert change["details"] == {
        "before": {"min": {"x": LOW}, "max": {"x": HIGH}, "lastmod": sharded.version(Timestamp(1, 0))},
        "left": {"min": {"x": LOW}, "max": {"x": 5}, "lastmod": sharded.version(Timestamp(1, 1))},
        "right": {"min": {"x": 5}, "max": {"x": HIGH}, "lastmod": sharded.version(Timestamp(1, 2))},
        "owningShard": "a",
    }


def test_split_in_three_is_logged_part_by_part(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0, 10)
    changes = catalog.changes(sharded.namespace)
    assert [change["what"] for change in changes] == ["multi-split"] * 3
    assert [(change["details"]["number"], change["details"]["of"]) for change in changes] == [(1, 3), (2, 3), (3, 3)]
    assert changes[2]["details"]["chunk"]["min"] == {"x": 10}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"collEpoch": ObjectId()}, ErrorCode.StaleEpoch),
        ({"shard": "b"}, ErrorCode.BadValue),
        ({"max": {"x": 7}}, ErrorCode.BadValue),
        ({"splitPoints": [{"x": 5}, {"x": 5}]}, ErrorCode.InvalidOptions),
        ({"splitPoints": [{"x": 5}, {"x": 4}]}, ErrorCode.InvalidOptions),
        ({"splitPoints": []}, ErrorCode.InvalidOptions),
        ({"splitPoints": 3}, ErrorCode.TypeMismatch),
        ({"_configsvrCommitChunkSplit": "chunks.unknown"}, ErrorCode.ConflictingOperationInProgress),
        ({"_configsvrCommitChunkSplit": "nonsense"}, ErrorCode.InvalidNamespace),
    ],
)
def test_split_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    sharded = catalog.shard_collection(f"chunks.split_refuses_{ObjectId()}")
    command = {
        "_configsvrCommitChunkSplit": sharded.namespace,
        "collEpoch": sharded.epoch,
        "min": {"x": LOW},
        "max": {"x": HIGH},
        "splitPoints": [{"x": 5}],
        "shard": "a",
        **change,
    }
    with pytest.raises(OperationFailure) as failure:
        catalog.run(command)
    assert failure.value.code == code
    assert catalog.bounds(sharded) == [(LOW, HIGH, "a", (1, 0))]
    assert not catalog.changes(sharded.namespace)


def test_merge_combines_many_chunks(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0, 10, 20)
    first = catalog.chunks(sharded)[0]
    reply = catalog.merge(sharded, LOW, 20)
    assert reply == {"shardVersion": sharded.version(Timestamp(1, 5)), "ok": 1.0}
    assert catalog.bounds(sharded) == [(LOW, 20, "a", (1, 5)), (20, HIGH, "a", (1, 4))]
    merged = catalog.chunks(sharded)[0]
    assert merged["_id"] == first["_id"]
    assert len(merged["history"]) == 1
    change = catalog.changes(sharded.namespace)[-1]
    assert change["what"] == "merge"
    assert change["details"] == {
        "prevShardVersion": sharded.version(Timestamp(1, 4)),
        "mergedVersion": sharded.version(Timestamp(1, 5)),
        "owningShard": "a",
        "min": {"x": LOW},
        "max": {"x": 20},
        "numChunks": 3,
    }


def test_merge_again_changes_nothing(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0)
    first = catalog.merge(sharded, LOW, HIGH)
    assert catalog.merge(sharded, LOW, HIGH) == first
    assert catalog.bounds(sharded) == [(LOW, HIGH, "a", (1, 3))]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": ObjectId()}, ErrorCode.StaleEpoch),
        ({"timestamp": Timestamp(1, 1)}, ErrorCode.StaleEpoch),
        ({"collUUID": {"uuid": Binary.from_uuid(uuid4())}}, ErrorCode.InvalidUUID),
        ({"shard": "b"}, ErrorCode.IllegalOperation),
        ({"chunkRange": {"min": {"x": LOW}, "max": {"x": 5}}}, ErrorCode.IllegalOperation),
        ({"chunkRange": {"min": {"x": 5}, "max": {"x": 5}}}, ErrorCode.FailedToParse),
    ],
)
def test_merge_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    sharded = catalog.shard_collection(f"chunks.merge_refuses_{ObjectId()}")
    catalog.split(sharded, LOW, HIGH, 0, 10)
    before = catalog.chunks(sharded)
    command = {
        "_configsvrCommitChunksMerge": sharded.namespace,
        "shard": "a",
        "collUUID": {"uuid": sharded.uuid},
        "chunkRange": {"min": {"x": LOW}, "max": {"x": 10}},
        "validAfter": catalog.now(),
        "epoch": sharded.epoch,
        "timestamp": sharded.timestamp,
        **change,
    }
    with pytest.raises(OperationFailure) as failure:
        catalog.run(command)
    assert failure.value.code == code
    assert catalog.chunks(sharded) == before


def test_move_raises_the_major_version_and_the_control_chunk(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0, 10)
    reply = catalog.move(sharded, 0, 10, "a", "b")
    assert reply == {
        "collectionVersion": sharded.version(Timestamp(2, 1)),
        "shardVersion": sharded.version(Timestamp(2, 1)),
        "ok": 1.0,
    }
    assert catalog.bounds(sharded) == [
        (LOW, 0, "a", (2, 1)),
        (0, 10, "b", (2, 0)),
        (10, HIGH, "a", (1, 3)),
    ]
    moved = catalog.chunks(sharded)[1]
    assert [entry["shard"] for entry in moved["history"]] == ["b", "a"]


def test_move_of_the_last_chunk_leaves_the_donor_with_none(catalog: CatalogUser, sharded: Sharded) -> None:
    reply = catalog.move(sharded, LOW, HIGH, "a", "b")
    assert reply["shardVersion"] == sharded.version(Timestamp(0, 0))
    assert reply["collectionVersion"] == sharded.version(Timestamp(2, 0))


def test_move_of_a_part_splits_off_the_rest(catalog: CatalogUser, sharded: Sharded) -> None:
    [before] = catalog.chunks(sharded)
    catalog.move(sharded, 0, 10, "a", "b")
    assert catalog.bounds(sharded) == [
        (LOW, 0, "a", (2, 1)),
        (0, 10, "b", (2, 0)),
        (10, HIGH, "a", (2, 2)),
    ]
    assert catalog.chunks(sharded)[1]["_id"] == before["_id"]


def test_move_again_is_confirmed(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0, 10)
    first = catalog.move(sharded, 0, 10, "a", "b")
    chunks = catalog.chunks(sharded)
    assert catalog.move(sharded, 0, 10, "a", "b") == first
    assert catalog.chunks(sharded) == chunks


def test_move_forgets_history_that_no_snapshot_reaches(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.config.chunks.update_one(
        {"uuid": sharded.uuid},
        {
            "$set": {
                "history": [
                    {"validAfter": Timestamp(300, 1), "shard": "a"},
                    {"validAfter": Timestamp(200, 1), "shard": "b"},
                    {"validAfter": Timestamp(100, 1), "shard": "a"},
                ]
            }
        },
    )
    catalog.move(sharded, LOW, HIGH, "a", "b")
    [moved] = catalog.chunks(sharded)
    assert [entry["validAfter"] for entry in moved["history"][1:]] == [Timestamp(300, 1)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"toShard": "c"}, ErrorCode.ShardNotFound),
        ({"_configsvrCommitChunkMigration": "chunks.unknown"}, ErrorCode.ConflictingOperationInProgress),
        ({"epoch": ObjectId()}, ErrorCode.StaleEpoch),
        ({"migratedChunk": {"min": {"x": -5}, "max": {"x": 5}}}, 40165),
        ({"fromShard": "c", "toShard": "b"}, 4914702),
    ],
)
def test_move_refuses(catalog: CatalogUser, change: dict[str, Any], code: int) -> None:
    sharded = catalog.shard_collection(f"chunks.move_refuses_{ObjectId()}")
    catalog.split(sharded, LOW, HIGH, 0, 10)
    before = catalog.chunks(sharded)
    version = sharded.version(Timestamp(1, 3))
    command = {
        "_configsvrCommitChunkMigration": sharded.namespace,
        "fromShard": "a",
        "toShard": "b",
        "migratedChunk": {"min": {"x": 0}, "max": {"x": 10}},
        "fromShardCollectionVersion": version,
        "validAfter": catalog.now(),
        **change,
    }
    epoch = command.pop("epoch", sharded.epoch)
    command["fromShardCollectionVersion"] = {**version, "e": epoch}
    command["migratedChunk"] = {**command["migratedChunk"], "lastmod": version}
    with pytest.raises(OperationFailure) as failure:
        catalog.run(command)
    assert failure.value.code == code
    assert catalog.chunks(sharded) == before


def test_move_of_a_chunk_that_changed_meanwhile_is_refused(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.split(sharded, LOW, HIGH, 0)
    command = {
        "_configsvrCommitChunkMigration": sharded.namespace,
        "fromShard": "a",
        "toShard": "b",
        "migratedChunk": {"min": {"x": LOW}, "max": {"x": 0}, "lastmod": sharded.version(Timestamp(1, 0))},
        "fromShardCollectionVersion": sharded.version(Timestamp(1, 0)),
        "validAfter": catalog.now(),
    }
    with pytest.raises(OperationFailure, match="Rejecting migration request") as failure:
        catalog.run(command)
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress


def test_move_waits_until_migrations_are_allowed(catalog: CatalogUser, sharded: Sharded) -> None:
    freeze = {"_configsvrSetAllowMigrations": sharded.namespace, "allowMigrations": False}
    catalog.run(freeze)
    with pytest.raises(OperationFailure, match="Collection is undergoing changes") as failure:
        catalog.move(sharded, LOW, HIGH, "a", "b")
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress
    catalog.run({**freeze, "allowMigrations": True})
    assert catalog.move(sharded, LOW, HIGH, "a", "b")["ok"] == 1.0
