"""Renaming sharded collections: on all shards and in the catalog, or not at all."""

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from bson import Int64, MaxKey
from bson.binary import Binary

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

SHARDS = ("sh0", "sh1")
COORDINATORS = "system.sharding_ddl_coordinators"
RENAMES = "localRenameParticipants"


def rename(sharded: ShardedNamespace, to: str, *, source: str = "c", **options: object) -> dict[str, Any]:
    command = {"_shardsvrRenameCollection": source, "to": f"{sharded.db}.{to}", **options}
    return sharded.run({**command, "databaseVersion": sharded.database_version}, sharded.primary)


def renamed(sharded: ShardedNamespace, to: str) -> ShardedNamespace:
    """The same collection under its new name."""
    sharded.collection, sharded.namespace = to, f"{sharded.db}.{to}"
    return sharded


def names(mini: MiniCluster, db: str) -> dict[str, list[str]]:
    found = {}
    for shard in SHARDS:
        with mini.shards[shard].members[0].mongod_client() as mongod:
            found[shard] = sorted(mongod[db].list_collection_names())
    return found


def check_nothing_left(mini: MiniCluster) -> None:
    for shard in SHARDS:
        with mini.shards[shard].members[0].mongod_client() as mongod:
            assert mongod.config[COORDINATORS].count_documents({}) == 0
            assert mongod.config[RENAMES].count_documents({}) == 0


def test_a_sharded_collection_keeps_its_chunks_zones_and_documents(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 20})
    ranged.insert({"_id": 2, "a": 5}, shard="sh1")
    with mini.config_client() as config:
        config.config.tags.insert_one({"ns": ranged.namespace, "min": {"a": 0}, "max": {"a": 10}, "tag": "z"})
    before, chunks, stale = ranged.entry(), ranged.chunks(), ranged.version()
    assert rename(ranged, "d")["ok"]
    assert ranged.versioned({"find": "c"}, version=stale)["code"] == 13388
    renamed(ranged, "d")
    after = ranged.entry()
    assert (after["uuid"], after["key"], after.get("allowMigrations", True)) == (before["uuid"], before["key"], True)
    assert after["timestamp"] > before["timestamp"]
    assert [chunk["min"] for chunk in ranged.chunks()] == [chunk["min"] for chunk in chunks]
    assert [ranged.documents(shard) for shard in SHARDS] == [[{"_id": 1, "a": 20}], [{"_id": 2, "a": 5}]]
    with mini.config_client() as config:
        assert config.config.collections.count_documents({"_id": f"{ranged.db}.c"}) == 0
        assert config.config.tags.count_documents({"ns": ranged.namespace}) == 1
        assert config.config.tags.count_documents({"ns": f"{ranged.db}.c"}) == 0
    check_nothing_left(mini)
    ranged.move({"a": 0}, {"a": 10}, "sh0")
    assert [document["_id"] for document in ranged.documents()] == [1, 2]


def test_a_sharded_target_is_replaced_if_the_client_wants_that(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 20})
    target = ShardedNamespace(mini, f"{ranged.db}.t", {"x": "hashed"}, "sh0")
    old = target.entry()
    reply = rename(ranged, "t")
    assert (reply["code"], reply["codeName"]) == (48, "NamespaceExists")
    assert "exists but dropTarget is not set" in reply["errmsg"]
    assert ranged.entry().get("allowMigrations", True)
    uuid = ranged.entry()["uuid"]
    assert rename(ranged, "t", dropTarget=True)["ok"]
    assert renamed(ranged, "t").entry()["uuid"] == uuid
    assert ranged.documents() == [{"_id": 1, "a": 20}]
    with mini.config_client() as config:
        assert config.config.chunks.count_documents({"uuid": old["uuid"]}) == 0
    assert names(mini, ranged.db) == {"sh0": ["t"], "sh1": ["t"]}
    check_nothing_left(mini)


def test_an_unsharded_target_is_replaced_too(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.run({"insert": "u", "documents": [{"_id": "old"}]})
    assert rename(ranged, "u")["code"] == 48
    assert rename(ranged, "u", dropTarget=True)["ok"]
    assert renamed(ranged, "u").documents() == []
    assert names(mini, ranged.db) == {"sh0": ["u"], "sh1": ["u"]}


def test_an_unsharded_collection_replaces_a_sharded_one(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 2, "a": 5}, shard="sh1")
    ranged.run({"insert": "u", "documents": [{"_id": "new"}]})
    assert rename(ranged, "c", source="u")["code"] == 48
    assert rename(ranged, "c", source="u", dropTarget=True)["ok"]
    with mini.config_client() as config:
        assert config.config.collections.count_documents({"_id": ranged.namespace}) == 0
    assert names(mini, ranged.db) == {"sh0": ["c"], "sh1": []}
    assert ranged.run({"find": "c"})["cursor"]["firstBatch"] == [{"_id": "new"}]
    check_nothing_left(mini)


def test_what_cannot_be_renamed_is_refused(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.run({"create": "v", "viewOn": "c", "pipeline": []})
    assert rename(ranged, "v", dropTarget=True)["code"] == 166
    assert rename(ranged, "c", source="missing", dropTarget=True)["code"] == 26
    mini.create_database(f"{ranged.db}other", "sh0")
    command = {"_shardsvrRenameCollection": "c", "to": f"{ranged.db}other.c"}
    reply = ranged.run({**command, "databaseVersion": ranged.database_version})
    assert (reply["code"], reply["codeName"]) == (125, "CommandFailed")
    assert ranged.entry().get("allowMigrations", True)
    check_nothing_left(mini)


def test_orphans_follow_and_are_deleted_under_the_new_name(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert(*({"_id": n, "a": n} for n in range(10, 30)))
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        mongod.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
    with mini.shard_client("sh0") as client, fail_point(client, "suspendRangeDeletion"):
        ranged.move({"a": 20}, {"a": MaxKey()}, "sh1")
        assert rename(ranged, "d")["ok"]
        assert [document["_id"] for document in renamed(ranged, "d").documents()] == list(range(10, 20))
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        assert ranged.run({"cleanupOrphaned": ranged.namespace}, db="admin")["ok"]
        assert mongod[ranged.db].d.count_documents({}) == 10
        # Tests that share the cluster may have left range deletions that wait for the delay.
        assert mongod.config.rangeDeletions.count_documents({"nss": {"$regex": f"^{ranged.db}\\."}}) == 0


def participate(sharded: ShardedNamespace, command: str) -> dict[str, Any]:
    return {command: "c", "to": f"{sharded.db}.d", "sourceUUID": sharded.entry()["uuid"]}


@pytest.mark.parametrize("is_killed", [False, True])
def test_operations_wait_on_a_participant_even_after_it_has_died(
    mini: MiniCluster, ranged: ShardedNamespace, is_killed: bool
) -> None:
    """``sh1`` renames, and waits for its coordinator, here the test, which gives the collection its old name again."""
    ranged.insert({"_id": 2, "a": 5}, shard="sh1")
    version = ranged.version("sh1")
    member = mini.shards["sh1"].members[0]
    with member.client() as client:
        client[ranged.db].command(participate(ranged, "_shardsvrRenameCollectionParticipant"))
    assert names(mini, ranged.db)["sh1"] == ["d"]
    if is_killed:
        member.restart(member.daemon)
    with member.client() as client, ThreadPoolExecutor() as pool:
        for name in ("c", "d"):
            blocked = {"find": name, "maxTimeMS": 200, "shardVersion": version}
            assert client[ranged.db].command(blocked, check=False, allowable_errors=[50])["code"] == 50
        insert = {"insert": "c", "documents": [{"_id": 3, "a": 6}], "shardVersion": version}
        waiting = pool.submit(client[ranged.db].command, insert)
        with member.mongod_client() as mongod:
            mongod.admin.command("renameCollection", f"{ranged.db}.d", to=f"{ranged.db}.c")
        end = participate(ranged, "_shardsvrRenameCollectionParticipantUnblock")
        client[ranged.db].command(end)
        client[ranged.db].command(end)
        assert waiting.result(20)["n"] == 1
    assert [document["_id"] for document in ranged.documents("sh1")] == [2, 3]
    check_nothing_left(mini)


@pytest.mark.parametrize("phase", ["freezeMigrations", "blockCRUDAndRename", "renameMetadata", "unblockCRUD"])
def test_the_next_primary_finishes_it(mini: MiniCluster, ranged: ShardedNamespace, phase: str) -> None:
    """Everything before the phase has been done, and perhaps what belongs to it."""
    ranged.insert({"_id": 1, "a": 20})
    entry, session = ranged.entry(), Binary.from_uuid(uuid4())
    phases = ["freezeMigrations", "blockCRUDAndRename", "renameMetadata", "unblockCRUD"]
    done = phases.index(phase)
    if done >= 1:
        for shard in SHARDS:
            with mini.shard_client(shard) as client:
                client[ranged.db].command(participate(ranged, "_shardsvrRenameCollectionParticipant"))
    if done >= 2:
        with mini.config_client() as config:
            commit = {"_configsvrRenameCollectionMetadata": ranged.namespace, "to": f"{ranged.db}.d"}
            opt = {"optFromCollection": {"uuid": entry["uuid"]}, "writeConcern": {"w": "majority"}}
            config.admin.command({**commit, **opt})
    member = mini.shards["sh0"].members[0]
    member.daemon.stop(signal.SIGKILL)
    with member.mongod_client() as mongod:
        mongod.config[COORDINATORS].insert_one(
            {
                "_id": {"namespace": ranged.namespace, "operationType": "renameCollection"},
                "recoveredFromDisk": True,
                "forwardableOpMetadata": {"mayBypassWriteBlocking": False},
                "phase": phase,
                "to": f"{ranged.db}.d",
                "dropTarget": False,
                "stayTemp": False,
                "sourceUUID": entry["uuid"],
                "sourceIsSharded": True,
                "targetIsSharded": False,
                "session": {"lsid": {"id": session}, "txnNumber": Int64(done + 1)},
            }
        )
        member.daemon.start()
        member.wait_ready()
        eventually(lambda: mongod.config[COORDINATORS].count_documents({}) == 0, what="no coordinator is left")
    assert names(mini, ranged.db) == {"sh0": ["d"], "sh1": ["d"]}
    assert renamed(ranged, "d").entry()["uuid"] == entry["uuid"]
    assert ranged.entry().get("allowMigrations", True)
    assert ranged.documents() == [{"_id": 1, "a": 20}]
    check_nothing_left(mini)
