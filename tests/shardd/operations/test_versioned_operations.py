"""Operations with versions, on real mongods."""

from typing import Any

import pytest
from bson import MinKey
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sharding.versions import IGNORED, UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

NOT_SHARDED = UNSHARDED.to_document()


def test_reads_and_writes_pass_with_the_right_version(ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 11}, {"_id": 2, "a": -1})
    assert ranged.documents() == [{"_id": 1, "a": 11}, {"_id": 2, "a": -1}]
    assert ranged.documents("sh1") == []


def test_a_stale_read_fails_with_both_versions(ranged: ShardedNamespace) -> None:
    stale = {**ranged.version(), "v": Timestamp(1, 3)}
    reply = ranged.versioned({"find": "c"}, version=stale)
    assert reply == {
        "ok": 0.0,
        "errmsg": f"version mismatch detected for {ranged.namespace}",
        "code": 13388,
        "codeName": "StaleConfig",
        "ns": ranged.namespace,
        "vReceived": stale,
        "vWanted": ranged.version(),
        "shardId": "sh0",
    }


def test_a_stale_write_writes_nothing(ranged: ShardedNamespace) -> None:
    stale = {**ranged.version(), "v": Timestamp(1, 3)}
    write = {"insert": "c", "documents": [{"a": 11}, {"a": 12}], "ordered": False}
    reply = ranged.versioned(write, version=stale)
    assert (reply["ok"], reply["n"], [each["code"] for each in reply["writeErrors"]]) == (1.0, 0, [13388, 13388])
    assert ranged.documents() == []


def test_a_router_that_does_not_know_that_it_is_sharded_gets_an_error(ranged: ShardedNamespace) -> None:
    command = {"find": "c", "shardVersion": NOT_SHARDED, "databaseVersion": ranged.database_version}
    assert ranged.run(command)["vWanted"] == ranged.version()


def test_without_versions_everything_is_admitted(ranged: ShardedNamespace) -> None:
    assert ranged.run({"insert": "c", "documents": [{"_id": 1, "a": 5}]}) == {"n": 1, "ok": 1.0}


def test_the_ignored_version_passes(ranged: ShardedNamespace) -> None:
    delete = {"delete": "c", "deletes": [{"q": {}, "limit": 0}]}
    assert ranged.versioned(delete, version=IGNORED.to_document()) == {"n": 0, "ok": 1.0}


def test_a_router_that_does_not_know_all_shards_gets_the_topology_time(
    ranged: ShardedNamespace, mini: MiniCluster
) -> None:
    shards = mini.kept_client(mini.config.members[0]).config.shards.find()
    latest = max(shard["topologyTime"] for shard in shards)
    delete = {"delete": "c", "deletes": [{"q": {}, "limit": 0}]}
    for known, told in [(latest, None), (Timestamp(1, 1), latest)]:
        for version, expected in [(IGNORED.to_document(), told), (ranged.version(), None)]:
            reply = ranged.gossiping({**delete, "$topologyTime": known, "shardVersion": version})
            assert (reply["ok"], reply.get("$topologyTime")) == (1.0, expected)


def test_a_minor_version_of_another_router_passes(ranged: ShardedNamespace) -> None:
    before = ranged.version()
    assert ranged.split([{"a": 20}], low={"a": 10})["ok"] == 1.0
    assert ranged.version() != before
    assert ranged.versioned({"find": "c"}, version=before)["ok"] == 1.0


def test_an_unsharded_collection_needs_the_version_of_its_database(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    version = ranged.database_version
    write = {"insert": "u", "documents": [{"_id": 1}], "shardVersion": NOT_SHARDED}
    assert ranged.run({**write, "databaseVersion": version}) == {"n": 1, "ok": 1.0}
    other = {**version, "lastMod": 7}
    reply = ranged.run({"find": "u", "shardVersion": NOT_SHARDED, "databaseVersion": other})
    assert (reply["code"], reply["codeName"], reply["db"]) == (249, "StaleDbVersion", ranged.db)
    assert (reply["vReceived"], reply["vWanted"]) == (other, version)
    stale_write = ranged.run({**write, "databaseVersion": other})
    assert [each["code"] for each in stale_write["writeErrors"]] == [249]


@pytest.mark.parametrize(("fields", "code"), [({}, 7032300), ({"shardVersion": IGNORED.to_document()}, 7032301)])
def test_a_read_of_a_sharded_collection_says_how_it_was_routed(
    ranged: ShardedNamespace, fields: dict[str, Any], code: int
) -> None:
    read = {"find": "c", "databaseVersion": ranged.database_version, **fields}
    assert ranged.run(read)["code"] == code
    assert ranged.run({**read, "find": "u"})["ok"] == 1.0


def test_malformed_versions_are_refused(ranged: ShardedNamespace) -> None:
    assert ranged.run({"find": "c", "shardVersion": [Timestamp(1, 0), MinKey()]})["code"] == 14


def test_explain_has_the_version_outside_the_explained_command(ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 11})
    explain = {"explain": {"find": "c", "filter": {"a": 11}}, "verbosity": "queryPlanner"}
    assert ranged.versioned(explain)["ok"] == 1.0
    stale = {**ranged.version(), "v": Timestamp(1, 3)}
    assert ranged.versioned(explain, version=stale)["code"] == 13388


def test_a_restarted_shard_reads_its_metadata_from_disk_and_catalog(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    ranged.insert({"_id": 1, "a": 11})
    member = mini.shards["sh0"].members[0]
    member.daemon.stop()
    member.daemon.start()
    member.wait_ready()
    assert ranged.documents() == [{"_id": 1, "a": 11}]


def test_cursors_opened_by_an_earlier_process_are_ended(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """Only that process knew what had to be hidden from them."""
    ranged.insert(*({"_id": number, "a": 11} for number in range(5)))
    cursor = ranged.versioned({"find": "c", "batchSize": 1})["cursor"]
    member = mini.shards["sh0"].members[0]
    with member.mongod_client() as mongod:
        oplog = mongod.local.command({"find": "oplog.rs", "batchSize": 1, "tailable": True})["cursor"]
        member.restart(member.daemon)
        with member.client() as client, pytest.raises(OperationFailure, match="cursor id") as failure:
            client[ranged.db].command("getMore", cursor["id"], collection="c")
        assert mongod.local.command("getMore", oplog["id"], collection="oplog.rs", batchSize=1)["ok"]
        mongod.local.command("killCursors", "oplog.rs", cursors=[oplog["id"]])
    assert failure.value.code == ErrorCode.CursorNotFound
    with member.client() as client:
        begun = client[ranged.db].command({"find": "c", "batchSize": 1, "shardVersion": ranged.version()})["cursor"]
        rest = client[ranged.db].command("getMore", begun["id"], collection="c")["cursor"]["nextBatch"]
    assert len(rest) == 4


def test_the_catalog_is_cached_on_the_shards(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    for shard in ("sh0", "sh1"):
        ranged.run({"_flushRoutingTableCacheUpdates": ranged.namespace}, shard, db="admin")
        with mini.shard_client(shard) as client:
            cached = client.config["cache.collections"].find_one({"_id": ranged.namespace})
            chunks = list(client.config[f"cache.chunks.{ranged.namespace}"].find().sort("lastmod", 1))
        assert cached is not None
        assert cached["refreshing"] is False
        assert cached["lastRefreshedCollectionVersion"] == Timestamp(2, 1)
        wanted = sorted(ranged.chunks(), key=lambda chunk: chunk["lastmod"])
        assert [(each["_id"], each["max"], each["shard"], each["lastmod"], each["history"]) for each in chunks] == [
            (each["min"], each["max"], each["shard"], each["lastmod"], each["history"]) for each in wanted
        ]


def test_a_shard_reports_its_versions(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    reply = ranged.run({"getShardVersion": ranged.namespace, "fullMetadata": True}, db="admin")
    entry = ranged.entry()
    assert reply["global"] == Timestamp(2, 1)
    assert reply["metadata"]["collVersion"] == Timestamp(2, 1)
    assert reply["metadata"]["shardVersionTimestamp"] == entry["timestamp"]
    assert reply["metadata"]["chunks"] == [
        [each["min"], each["max"]] for each in ranged.chunks() if each["shard"] == "sh0"
    ]
    assert ranged.run({"getDatabaseVersion": ranged.db}, db="admin")["dbVersion"] == ranged.database_version
    state = ranged.run({"shardingState": 1}, db="admin")
    assert (state["enabled"], state["shardName"]) == (True, "sh0")
    assert state["versions"][ranged.namespace] == Timestamp(2, 1)
