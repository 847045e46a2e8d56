"""Refining shard keys: everything keeps its place, and nothing is left behind when it cannot be done."""

import signal
from typing import Any

import pytest
from bson import MaxKey, MinKey

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

REFINED = {"a": 1, "b": 1}
COORDINATORS = "system.sharding_ddl_coordinators"


def refine(sharded: ShardedNamespace, key: dict[str, Any], **options: object) -> dict[str, Any]:
    command = {"_shardsvrRefineCollectionShardKey": sharded.collection, "newShardKey": key, **options}
    return sharded.run({**command, "databaseVersion": sharded.database_version}, sharded.primary)


def create_index(mini: MiniCluster, sharded: ShardedNamespace, key: dict[str, Any], *shards: str) -> None:
    for shard in shards or ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            client[sharded.db][sharded.collection].create_index(list(key.items()))


def bounds(sharded: ShardedNamespace) -> list[tuple[object, object]]:
    return [(chunk["min"].get("a"), chunk["min"].get("b")) for chunk in sharded.chunks()]


def is_settled(mini: MiniCluster, sharded: ShardedNamespace) -> bool:
    """Whether nothing of a change is left."""
    with mini.shard_client(sharded.primary) as client:
        left = client.config[COORDINATORS].count_documents({})
    return not left and bool(sharded.entry().get("allowMigrations", True))


def test_bounds_zones_and_versions_are_those_of_the_refined_key(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    create_index(mini, ranged, REFINED)
    with mini.config_client() as config:
        zone = {"ns": ranged.namespace, "min": {"a": 5}, "max": {"a": MaxKey()}, "tag": "z"}
        config.config.tags.insert_one(zone)
        config.config.chunks.update_one({"uuid": ranged.entry()["uuid"], "min.a": 0}, {"$set": {"jumbo": True}})
    before, stale = ranged.entry(), ranged.version()
    assert refine(ranged, REFINED) == {"ok": 1.0}
    after = ranged.entry()
    assert after["key"] == REFINED
    assert (after["uuid"], after["timestamp"] > before["timestamp"]) == (before["uuid"], True)
    assert after["lastmodEpoch"] != before["lastmodEpoch"]
    assert bounds(ranged) == [(MinKey(), MinKey()), (0, MinKey()), (10, MinKey())]
    assert ranged.chunks()[-1]["max"] == {"a": MaxKey(), "b": MaxKey()}
    assert not any("jumbo" in chunk for chunk in ranged.chunks())
    with mini.config_client() as config:
        (refined,) = config.config.tags.find({"ns": ranged.namespace})
    assert (refined["min"], refined["max"]) == ({"a": 5, "b": MinKey()}, {"a": MaxKey(), "b": MaxKey()})
    assert ranged.versioned({"find": "c"}, version=stale)["code"] == 13388
    ranged.insert({"_id": 1, "a": 11, "b": 1})
    assert is_settled(mini, ranged)
    assert refine(ranged, REFINED) == {"ok": 1.0}
    assert ranged.entry() == after


def test_a_refined_collection_can_be_split_and_moved_by_the_added_field(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    create_index(mini, ranged, REFINED)
    ranged.insert(*({"_id": n, "a": 20, "b": n} for n in range(10)))
    assert refine(ranged, REFINED)["ok"]
    ranged.key = REFINED
    low, high = {"a": 10, "b": MinKey()}, {"a": MaxKey(), "b": MaxKey()}
    assert ranged.split([{"a": 20, "b": 4}], low=low, high=high)["ok"]
    ranged.move({"a": 20, "b": 4}, high, "sh1")
    assert [document["_id"] for document in ranged.documents()] == [0, 1, 2, 3]
    assert [document["_id"] for document in ranged.documents("sh1")] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("holder", ["sh0", "sh1"])
def test_every_owner_needs_an_index(mini: MiniCluster, ranged: ShardedNamespace, holder: str) -> None:
    create_index(mini, ranged, REFINED, holder)
    before = ranged.entry()
    reply = refine(ranged, REFINED)
    assert (reply["code"], reply["codeName"]) == (72, "InvalidOptions")
    assert "before refining the shard key of the collection" in reply["errmsg"]
    assert ranged.entry() == before
    assert is_settled(mini, ranged)


@pytest.mark.parametrize(
    ("key", "code"),
    [({"b": 1, "a": 1}, 72), ({"b": 1}, 72), ({"a": "hashed", "b": 1}, 72), ({"a": 1, "b": -1}, 2), ({}, 2)],
)
def test_a_key_that_does_not_extend_is_refused(
    mini: MiniCluster, ranged: ShardedNamespace, key: dict[str, Any], code: int
) -> None:
    assert refine(ranged, key)["code"] == code
    assert is_settled(mini, ranged)


def test_only_sharded_collections_have_a_key(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.collection = "unsharded"
    assert refine(ranged, REFINED)["code"] == 118


def test_arrays_in_an_added_field_are_refused(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 20, "b": [1, 2]})
    create_index(mini, ranged, REFINED)
    assert refine(ranged, REFINED)["ok"] == 0.0
    assert is_settled(mini, ranged)


def test_orphans_of_a_range_given_away_before_stay_hidden_and_are_deleted(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    create_index(mini, ranged, REFINED)
    ranged.insert(*({"_id": n, "a": n, "b": n} for n in range(10, 30)))
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        mongod.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
    with mini.shard_client("sh0") as client, fail_point(client, "suspendRangeDeletion"):
        ranged.move({"a": 20}, {"a": MaxKey()}, "sh1")
        assert refine(ranged, REFINED)["ok"]
        assert [document["_id"] for document in ranged.documents()] == list(range(10, 20))
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        assert ranged.run({"cleanupOrphaned": ranged.namespace}, db="admin")["ok"]
        assert mongod[ranged.db].c.count_documents({"a": {"$gte": 20}}) == 0
        assert mongod[ranged.db].c.count_documents({}) == 10


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_next_primary_finishes_it(mini: MiniCluster, ranged: ShardedNamespace, is_committed: bool) -> None:
    create_index(mini, ranged, REFINED)
    entry = ranged.entry()
    majority = {"writeConcern": {"w": "majority"}}
    with mini.config_client() as config:
        freeze = {"_configsvrSetAllowMigrations": ranged.namespace, "allowMigrations": False}
        config.admin.command({**freeze, "collectionUUID": entry["uuid"], **majority})
        if is_committed:
            commit = {"_configsvrRefineCollectionShardKey": ranged.namespace, "key": REFINED}
            config.admin.command({**commit, "epoch": entry["lastmodEpoch"], **majority})
    member = mini.shards["sh0"].members[0]
    member.daemon.stop(signal.SIGKILL)
    with member.mongod_client() as mongod:
        mongod.config[COORDINATORS].insert_one(
            {
                "_id": {"namespace": ranged.namespace, "operationType": "refineCollectionShardKey"},
                "recoveredFromDisk": True,
                "forwardableOpMetadata": {"mayBypassWriteBlocking": False},
                "phase": "RefineCollectionShardKey",
                "newShardKey": REFINED,
                "oldKey": entry["key"],
                "oldEpoch": entry["lastmodEpoch"],
                "refinedUUID": entry["uuid"],
            }
        )
        member.daemon.start()
        member.wait_ready()
        eventually(lambda: is_settled(mini, ranged), what="the change is over")
    assert ranged.entry()["key"] == REFINED
    ranged.insert({"_id": 1, "a": 11, "b": 1})
