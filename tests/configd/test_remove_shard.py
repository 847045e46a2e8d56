"""Removing a shard: its states, refusals, and adding it again."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.configd.in_process import in_process
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Set

NOTE = {"note": "you need to drop or movePrimary these databases"}


@pytest.fixture
def leaving_set(catalog: CatalogUser) -> Iterator[FakeShard]:
    """A third shard, ``leaving``, which is gone after the test."""
    with fake_shards("leaving") as shards:
        catalog.run({"_configsvrAddShard": shards["leaving"].connection_string})
        yield shards["leaving"]
        catalog.config.shards.delete_one({"_id": "leaving"})


@pytest.fixture
def leaving(leaving_set: FakeShard) -> str:
    """The name of this shard."""
    return leaving_set.set_name


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


@pytest.mark.parametrize("collection", ["transaction_coordinators", "migrationCoordinators"])
def test_a_shard_stays_until_it_has_finished_what_others_wait_for(
    catalog: CatalogUser, leaving_set: FakeShard, collection: str
) -> None:
    assert remove(catalog, "leaving")["state"] == "started"
    leaving_set.found[collection] = [{"_id": 1}]
    ongoing = remove(catalog, "leaving")
    assert (ongoing["state"], ongoing["remaining"]["chunks"]) == ("ongoing", 0)
    leaving_set.found.clear()
    assert remove(catalog, "leaving")["state"] == "completed"


def test_a_shard_that_has_not_finished_something_stays_however_often_it_is_removed(
    catalog: CatalogUser, leaving_set: FakeShard
) -> None:
    """Requests at the same time, the first of which has begun the removal."""
    leaving_set.found["migrationCoordinators"] = [{"_id": 1}]
    with ThreadPoolExecutor(8) as pool:
        states = [reply["state"] for reply in pool.map(lambda _: remove(catalog, "leaving"), range(8))]
    assert sorted(states) == ["ongoing"] * 7 + ["started"]
    leaving_set.found.clear()
    assert remove(catalog, "leaving")["state"] == "completed"


def test_a_shard_stays_while_another_one_moves_a_database_to_it(
    catalog: CatalogUser, shards: dict[str, FakeShard], leaving: str
) -> None:
    """The part that has been copied would be a database of the cluster once the shard was added again."""
    assert remove(catalog, leaving)["state"] == "started"
    change = {"_id": {"namespace": "moving.", "operationType": "movePrimary"}, "to": leaving}
    shards["b"].found["system.sharding_ddl_coordinators"] = [change]
    assert remove(catalog, leaving)["state"] == "ongoing"
    (asked,) = (each["filter"] for each in shards["b"].received("find") if each["filter"].get("to"))
    assert asked == {"_id.operationType": "movePrimary", "to": leaving}
    shards["b"].found.clear()
    assert remove(catalog, leaving)["state"] == "completed"


def test_a_shard_that_is_lost_can_be_removed(catalog: CatalogUser, leaving_set: FakeShard) -> None:
    assert remove(catalog, "leaving")["state"] == "started"
    leaving_set.failures["find"] = CommandError(ErrorCode.HostUnreachable, "nobody is there")
    assert remove(catalog, "leaving")["state"] == "completed"


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


def test_a_database_is_created_elsewhere_if_its_shard_is_removed_meanwhile(
    catalog: CatalogUser, config_set: Set, shards: dict[str, FakeShard]
) -> None:
    """While the shards are asked for their sizes, the smallest of them is removed."""
    for shard in shards.values():
        shard.databases["large"] = 1 << 30
    with fake_shards("removed") as fakes, config_set.members[0].client() as client, ThreadPoolExecutor(1) as pool:
        removed = fakes["removed"]
        catalog.run({"_configsvrAddShard": removed.connection_string})
        removed.held["listDatabases"] = threading.Event()
        creating = pool.submit(CatalogUser(client).run, {"_configsvrCreateDatabase": "homeless"})
        try:
            eventually(lambda: len(removed.received("listDatabases")) > 1, within=30, what="the shard is asked")
            remove(catalog, "removed")
            assert remove(catalog, "removed")["state"] == "completed"
        finally:
            removed.held["listDatabases"].set()
        creating.result(60)
    entry = catalog.config.databases.find_one({"_id": "homeless"})
    assert entry is not None
    assert entry["primary"] in shards
    catalog.config.databases.delete_one({"_id": "homeless"})
    for shard in shards.values():
        shard.databases.clear()


def test_nothing_is_placed_on_a_shard_that_was_removed_meanwhile(
    catalog: CatalogUser, config_set: Set, leaving: str
) -> None:
    """Whatever a command has read before, the shard has to be there when the command writes."""
    sharded = catalog.shard_collection("removed.moved", [(MinKey(), 0, "a"), (0, MaxKey(), "a")])
    created = Sharded("removed.created", Binary.from_uuid(uuid4()), ObjectId(), catalog.now())
    create = catalog.create_command(created, [(MinKey(), 0, "a"), (0, MaxKey(), leaving)])
    version = sharded.version(catalog.chunks(sharded)[1]["lastmod"])
    move = {
        "_configsvrCommitChunkMigration": sharded.namespace,
        "fromShard": "a",
        "toShard": leaving,
        "migratedChunk": {"min": {"x": 0}, "max": {"x": MaxKey()}, "lastmod": version},
        "fromShardCollectionVersion": version,
        "validAfter": catalog.now(),
    }
    database = {"_configsvrCreateDatabase": "placed", "primaryShardId": leaving}

    async def late(command: dict[str, Any]) -> int:
        """The error of a command whose first write comes after the removal of the shard."""
        async with in_process(config_set) as server:
            server.mongod.before_write = lambda: catalog.config.shards.delete_one({"_id": leaving})
            with pytest.raises(CommandError) as refused:
                await server.run(command)
        return refused.value.code

    entry = catalog.config.shards.find_one({"_id": leaving})
    assert entry is not None
    for command in (create, move, database):
        assert trio.run(late, command) == ErrorCode.ShardNotFound, command
        catalog.config.shards.insert_one(entry)
    assert catalog.config.chunks.count_documents({"shard": leaving}) == 0
    assert catalog.config.chunks.count_documents({"uuid": created.uuid}) == 0
    assert catalog.config.databases.find_one({"_id": "placed"}) is None


def test_two_shards_removed_at_once_leave_one(catalog: CatalogUser, config_set: Set, leaving: str) -> None:
    """Requests that two routers send at the same time, for all shards that there are."""
    names = [leaving, "a", "b"]
    catalog.config.tags.delete_many({})  # a shard that is the only one of another test's zone could not be removed

    def begin(name: str) -> str | int | None:
        with config_set.members[0].client() as client:
            try:
                return str(remove(CatalogUser(client), name)["state"])
            except OperationFailure as failure:
                return failure.code

    try:
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(begin, names))
        assert sorted(map(str, results)) == [str(int(ErrorCode.IllegalOperation)), "started", "started"]
        assert catalog.config.shards.count_documents({"draining": True}) == 2
    finally:
        catalog.config.shards.update_many({}, {"$unset": {"draining": 1}})


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
