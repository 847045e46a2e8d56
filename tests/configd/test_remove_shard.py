"""Removing a shard: its states, what is refused, and adding it again."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import fake_shards

NOTE = {"note": "you need to drop or movePrimary these databases"}


@pytest.fixture
def leaving(catalog: CatalogUser) -> Iterator[str]:
    """A third shard, ``leaving``, which is gone after the test."""
    with fake_shards("leaving") as shards:
        catalog.run({"_configsvrAddShard": shards["leaving"].connection_string})
        yield "leaving"
        catalog.config.shards.delete_one({"_id": "leaving"})


def remove(catalog: CatalogUser, shard: str) -> dict[str, Any]:
    return catalog.run({"_configsvrRemoveShard": shard})


def refusal(catalog: CatalogUser, shard: str) -> tuple[int | None, str]:
    with pytest.raises(OperationFailure) as failure:
        remove(catalog, shard)
    assert failure.value.details is not None
    return failure.value.code, failure.value.details["errmsg"]


def test_an_empty_shard_is_removed_by_the_second_request(catalog: CatalogUser, leaving: str) -> None:
    before = max(shard["topologyTime"] for shard in catalog.config.shards.find())
    assert remove(catalog, leaving) == {
        "msg": "draining started successfully",
        "state": "started",
        "shard": "leaving",
        **NOTE,
        "dbsToMove": [],
        "ok": 1.0,
    }
    assert remove(catalog, leaving) == {
        "msg": "removeshard completed successfully",
        "state": "completed",
        "shard": "leaving",
        "ok": 1.0,
    }
    assert refusal(catalog, leaving) == (ErrorCode.ShardNotFound, "Shard leaving not found")
    assert max(shard["topologyTime"] for shard in catalog.config.shards.find()) > before
    changes = [
        (each["what"], each["details"]) for each in catalog.config.changelog.find({"what": {"$regex": "^remove"}})
    ]
    assert changes[-2:] == [("removeShard.start", {"shard": "leaving"}), ("removeShard", {"shard": "leaving"})]


def test_what_remains_is_reported(catalog: CatalogUser, leaving: str) -> None:
    catalog.run({"_configsvrCreateDatabase": "stays", "primaryShardId": leaving})
    sharded = catalog.shard_collection("remains.c", [(MinKey(), 0, leaving), (0, MaxKey(), leaving)])
    catalog.config.chunks.update_one({"uuid": sharded.uuid, "min.x": 0}, {"$set": {"jumbo": True}})
    assert remove(catalog, leaving)["dbsToMove"] == ["stays"]
    ongoing = {
        "msg": "draining ongoing",
        "state": "ongoing",
        "remaining": {"chunks": 2, "dbs": 1, "jumboChunks": 1},
        **NOTE,
        "dbsToMove": ["stays"],
        "ok": 1.0,
    }
    assert remove(catalog, leaving) == ongoing
    assert all(isinstance(value, Int64) for value in remove(catalog, leaving)["remaining"].values())
    catalog.config.chunks.delete_many({"uuid": sharded.uuid})
    catalog.config.collections.delete_one({"_id": "remains.c"})
    assert remove(catalog, leaving)["remaining"] == {"chunks": 0, "dbs": 1, "jumboChunks": 0}
    catalog.config.databases.delete_one({"_id": "stays"})
    assert remove(catalog, leaving)["state"] == "completed"


def test_what_is_refused(catalog: CatalogUser, leaving: str) -> None:
    catalog.run({"_configsvrAddShardToZone": leaving, "zone": "only"})
    catalog.run({"_configsvrUpdateZoneKeyRange": "remove.zoned", "min": {"x": 0}, "max": {"x": 1}, "zone": "only"})
    code, _ = refusal(catalog, leaving)
    assert code == ErrorCode.ZoneStillInUse
    catalog.config.tags.delete_many({"ns": "remove.zoned"})
    catalog.config.shards.update_many({"_id": {"$in": ["a", "b"]}}, {"$set": {"draining": True}})
    try:
        assert refusal(catalog, leaving) == (
            ErrorCode.IllegalOperation,
            "Operation not allowed because it would remove the last shard",
        )
    finally:
        catalog.config.shards.update_many({}, {"$unset": {"draining": 1}})
    assert refusal(catalog, "nobody") == (ErrorCode.ShardNotFound, "Shard nobody not found")


def test_a_shard_can_be_added_again(catalog: CatalogUser) -> None:
    with fake_shards("again") as shards:
        add = {"_configsvrAddShard": shards["again"].connection_string}
        catalog.run(add)
        remove(catalog, "again")
        catalog.run(add)
        entry = catalog.config.shards.find_one({"_id": "again"})
        assert entry is not None
        assert entry["draining"] is True, "adding it does not end the draining"
        assert remove(catalog, "again")["state"] == "completed"
        catalog.run(add)
        entry = catalog.config.shards.find_one({"_id": "again"})
        assert entry is not None
        assert "draining" not in entry
        remove(catalog, "again")
        assert remove(catalog, "again")["state"] == "completed"
