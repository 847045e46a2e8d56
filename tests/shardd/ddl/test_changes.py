"""Dropping, renaming, splitting, merging and moving on real shards."""

from bson import MaxKey, MinKey
from bson.timestamp import Timestamp

from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


def test_a_dropped_collection_is_gone_everywhere(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    version = ranged.version()
    ranged.insert({"a": 11})
    drop = {"_shardsvrDropCollection": "c", "databaseVersion": ranged.database_version}
    assert ranged.run(drop) == {"ok": 1.0}
    assert ranged.run(drop) == {"ok": 1.0}
    with mini.config_client() as config:
        assert config.config.collections.count_documents({"_id": ranged.namespace}) == 0
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            assert client[ranged.db].list_collection_names() == []
            assert client.config["cache.collections"].find_one({"_id": ranged.namespace}) is None
    assert ranged.versioned({"find": "c"}, version=version)["code"] == 13388


def test_a_dropped_database_takes_everything_with_it(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.run({"insert": "u", "documents": [{}]})
    drop = {"_shardsvrDropDatabase": 1, "databaseVersion": ranged.database_version}
    assert ranged.run(drop) == {"dropped": ranged.db, "ok": 1.0}
    with mini.config_client() as config:
        assert config.config.databases.find_one({"_id": ranged.db}) is None
        assert config.config.collections.find_one({"_id": ranged.namespace}) is None
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            assert ranged.db not in client.list_database_names()
            assert client.config["system.sharding_ddl_coordinators"].count_documents({}) == 0


def test_an_unsharded_collection_can_be_renamed(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.run({"insert": "u", "documents": [{"_id": 1}]})
    rename = {"to": f"{ranged.db}.v", "databaseVersion": ranged.database_version}
    assert ranged.run({"_shardsvrRenameCollection": "u", **rename})["ok"] == 1.0
    assert ranged.run({"_shardsvrRenameCollection": "u", **rename})["code"] == 26
    with mini.shard_client("sh0") as client:
        assert sorted(client[ranged.db].list_collection_names()) == ["c", "v"]


def test_a_split_can_be_repeated(ranged: ShardedNamespace) -> None:
    for _ in range(2):
        assert ranged.split([{"a": 20}, {"a": 30}], low={"a": 10}) == {"ok": 1.0}
    assert [chunk["min"]["a"] for chunk in ranged.chunks()] == [MinKey(), 0, 10, 20, 30]


def test_invalid_splits_are_refused(ranged: ShardedNamespace) -> None:
    assert ranged.split([{"a": 5}], low={"a": 10})["code"] == 72
    assert ranged.split([{"a": 15}], low={"a": 11})["ok"] == 0.0


def test_a_hashed_chunk_is_split_at_a_hash(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": "hashed"}, "sh0")
    low = sharded.chunks()[0]
    assert sharded.split([{"a": 1.5}], low=low["min"], high=low["max"])["code"] == 87


def test_a_merge_can_be_repeated(ranged: ShardedNamespace) -> None:
    ranged.split([{"a": 20}, {"a": 30}], low={"a": 10})
    merge = {"mergeChunks": ranged.namespace, "bounds": [{"a": 10}, {"a": 30}]}
    entry = ranged.entry()
    identity = {"epoch": entry["lastmodEpoch"], "timestamp": entry["timestamp"]}
    for _ in range(2):
        assert ranged.run({**merge, **identity}, db="admin") == {"ok": 1.0}
    assert [chunk["min"]["a"] for chunk in ranged.chunks()] == [MinKey(), 0, 10, 30]
    over_others = {**merge, "bounds": [{"a": MinKey()}, {"a": 30}]}
    assert ranged.run({**over_others, **identity}, db="admin")["code"] == 20
    other_epoch = {**identity, "epoch": ranged.chunks()[0]["_id"]}
    assert ranged.run({**merge, **other_epoch}, db="admin")["code"] == 13388  # StaleConfig, as a genuine shard


def test_an_empty_range_moves_and_its_neighbours_stay(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 15}, {"_id": 2, "a": 40})
    ranged.move({"a": 20}, {"a": 30}, "sh1")
    owners = [(chunk["min"]["a"], chunk["shard"]) for chunk in ranged.chunks()]
    assert owners == [(MinKey(), "sh0"), (0, "sh1"), (10, "sh0"), (20, "sh1"), (30, "sh0")]
    assert max(chunk["lastmod"] for chunk in ranged.chunks()).time == 3
    ranged.insert({"_id": 3, "a": 25}, shard="sh1")
    assert len(ranged.documents()) == 2
    with mini.config_client() as config:
        moves = {"ns": ranged.namespace, "what": {"$in": ["moveChunk.start", "moveChunk.commit"]}}
        what = [entry["what"] for entry in config.config.changelog.find(moves).sort("time", 1)]
    assert what[-2:] == ["moveChunk.start", "moveChunk.commit"]


def test_a_range_moves_with_its_documents(ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 15}, {"_id": 2, "a": MaxKey()}, {"_id": 3, "a": -1})
    ranged.move({"a": 10}, {"a": 20}, "sh1")
    ranged.move({"a": 20}, {"a": MaxKey()}, "sh1")
    assert [document["_id"] for document in ranged.documents()] == [3]
    assert [document["_id"] for document in ranged.documents("sh1")] == [1, 2]
    assert ranged.version()["v"] == Timestamp(4, 1)
