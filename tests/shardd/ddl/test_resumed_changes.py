"""Changes whose coordinator died: the next primary finishes them."""

import signal
from typing import Any

import pytest

from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

COORDINATORS = "system.sharding_ddl_coordinators"


def restart_with(mini: MiniCluster, document: dict[str, Any]) -> None:
    """Kill the daemon of ``sh0``, insert a coordinator's document, restart it and wait for the coordinator's end."""
    member = mini.shards["sh0"].members[0]
    member.daemon.stop(signal.SIGKILL)
    with member.mongod_client() as mongod:
        common = {"recoveredFromDisk": True, "forwardableOpMetadata": {"mayBypassWriteBlocking": False}}
        mongod.config[COORDINATORS].insert_one({**document, **common})
        member.daemon.start()
        member.wait_ready()
        eventually(lambda: mongod.config[COORDINATORS].count_documents({}) == 0, what="no coordinator is left")


@pytest.mark.parametrize("step", ["nothing done", "created here", "committed"])
def test_sharding_is_finished(mini: MiniCluster, db: str, step: str) -> None:
    namespace = f"{db}.c"
    mini.create_database(db, "sh0")
    if step == "created here":
        with mini.shard_client("sh0") as client:
            client[db].create_collection("c")
    elif step == "committed":
        mini.shard_collection(namespace, {"a": "hashed"}, "sh0")
    identity = {"namespace": namespace, "operationType": "createCollection_V2"}
    restart_with(mini, {"_id": identity, "phase": "commit", "shardKey": {"a": "hashed"}})
    for shard in ("sh0", "sh1"):
        version = mini.shard_version(namespace, shard)
        with mini.shard_client(shard) as client:
            assert client[db].command({"find": "c", "shardVersion": version})["ok"] == 1.0


@pytest.mark.parametrize("is_out_of_catalog", [False, True])
def test_a_drop_is_finished(mini: MiniCluster, ranged: ShardedNamespace, is_out_of_catalog: bool) -> None:
    ranged.insert({"a": 11})
    uuid = ranged.entry()["uuid"]
    if is_out_of_catalog:
        with mini.config_client() as config:
            commit = {"_configsvrCommitDropCollection": ranged.namespace, "collectionUUID": {"uuid": uuid}}
            config.admin.command({**commit, "writeConcern": {"w": "majority"}})
    identity = {"namespace": ranged.namespace, "operationType": "dropCollection"}
    restart_with(mini, {"_id": identity, "phase": "dropCollection", "collInfo": {"uuid": uuid}})
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            assert client[ranged.db].list_collection_names() == []
    with mini.config_client() as config:
        assert config.config.collections.find_one({"_id": ranged.namespace}) is None


def test_a_database_drop_is_finished(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    identity = {"namespace": f"{ranged.db}.", "operationType": "dropDatabase"}
    restart_with(mini, {"_id": identity, "phase": "drop", "databaseVersion": ranged.database_version})
    with mini.config_client() as config:
        assert config.config.databases.find_one({"_id": ranged.db}) is None
        assert config.config.collections.find_one({"_id": ranged.namespace}) is None


def test_a_cache_that_was_left_half_written_is_written_again(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    member = mini.shards["sh0"].members[0]
    member.daemon.stop(signal.SIGKILL)
    with member.mongod_client() as mongod:
        cached = {"_id": ranged.namespace}
        mongod.config["cache.collections"].update_one(cached, {"$set": {"refreshing": True}})
        mongod.config[f"cache.chunks.{ranged.namespace}"].delete_many({"shard": "sh1"})
        member.daemon.start()
        member.wait_ready()
        ranged.insert({"a": 11})
        eventually(lambda: not mongod.config["cache.collections"].find_one(cached)["refreshing"])  # type: ignore[index]
        assert mongod.config[f"cache.chunks.{ranged.namespace}"].count_documents({}) == 3
