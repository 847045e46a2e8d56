"""Administration of a genuine cluster through our router."""

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.mongosh_compat.runner import SCRIPTS, run_script
from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.interop.sharded import Document, chunks, placement, split_parts
from tests.local_cluster import Client


def test_create_database_implicitly(client: Client) -> None:
    client.interop_implicit.things.insert_one({"_id": 1})
    entry = client.config.databases.find_one({"_id": "interop_implicit"})
    assert entry is not None
    assert entry["primary"] in SHARDS
    client.drop_database("interop_implicit")
    assert client.config.databases.find_one({"_id": "interop_implicit"}) is None


def test_shard_collection_by_range(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.ranged"
    for _ in range(2):  # Repeated, it changes nothing.
        reply = client.admin.command("shardCollection", namespace, key={"place": 1, "_id": 1})
        assert reply["collectionsharded"] == namespace
    entry = client.config.collections.find_one({"_id": namespace})
    assert entry is not None
    assert list(entry["key"]) == ["place", "_id"]
    assert placement(client, namespace) == [SHARDS[0]]
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("shardCollection", namespace, key={"other": 1})
    assert failure.value.code == ErrorCode.AlreadyInitialized


def test_shard_collection_by_hash(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.hashed"
    client.admin.command("shardCollection", namespace, key={"_id": "hashed"}, numInitialChunks=4)
    assert placement(client, namespace) == [SHARDS[0], SHARDS[0], SHARDS[1], SHARDS[1]]
    documents = [{"_id": number} for number in range(200)]
    database.hashed.insert_many(documents)
    assert list(database.hashed.find().sort("_id", 1)) == documents
    per_shard = database.command("count", "hashed")["shards"]
    assert set(per_shard) == set(SHARDS)
    assert sum(per_shard.values()) == 200


def test_split_and_merge(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.ranged"
    admin = client.admin
    admin.command("shardCollection", namespace, key={"key": 1})
    database.ranged.insert_many([{"key": number} for number in range(100)])
    admin.command("split", namespace, middle={"key": 10})
    admin.command("split", namespace, find={"key": 70})  # At the median of the chunk's documents.
    below, middle, above = chunks(client, namespace)
    assert below["max"] == middle["min"] == {"key": 10}
    assert 40 < above["min"]["key"] < 70
    admin.command("split", namespace, bounds=[middle["min"], middle["max"]])
    assert len(chunks(client, namespace)) == 4
    admin.command("mergeChunks", namespace, bounds=[{"key": 10}, above["max"]])
    assert [chunk["min"] for chunk in chunks(client, namespace)] == [below["min"], {"key": 10}]
    refused: list[Document] = [{"middle": {"key": 10}}, {"find": {"key": 5}, "middle": {"key": 5}}]
    for options in refused:
        with pytest.raises(OperationFailure):
            admin.command("split", namespace, **options)


def test_move_chunk_with_documents(client: Client, genuine: GenuineCluster, database: Database[Document]) -> None:
    collection = split_parts(database)
    assert placement(client, f"{database.name}.ranged") == list(SHARDS)
    assert [document["key"] for document in collection.find().sort("key", 1)] == list(range(100))
    with genuine.direct(genuine.shards[SHARDS[1]]) as shard:
        assert shard[database.name].ranged.count_documents({}) == 50


def test_move_range_with_documents(client: Client, database: Database[Document]) -> None:
    collection = split_parts(database)
    namespace = f"{database.name}.ranged"
    client.admin.command("moveRange", namespace, min={"key": 10}, max={"key": 20}, toShard=SHARDS[1])
    assert placement(client, namespace) == [SHARDS[0], SHARDS[1], SHARDS[0], SHARDS[1]]
    assert collection.count_documents({}) == 100
    assert collection.count_documents({"key": {"$gte": 5, "$lt": 25}}) == 20


def test_move_range_with_one_bound(client: Client, database: Database[Document]) -> None:
    collection = database.big
    namespace = collection.full_name
    client.admin.command("shardCollection", namespace, key={"key": 1})
    client.admin.command("balancerStop")  # with chunks as small as this it would have something to move
    client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
    try:
        collection.insert_many([{"_id": n, "key": n, "text": "x" * 1000} for n in range(4000)])
        client.admin.command("moveRange", namespace, max={"key": 3500}, toShard=SHARDS[1])
    finally:
        client.config.settings.delete_one({"_id": "chunksize"})
        client.admin.command("balancerStart")
    first, moved, last = chunks(client, namespace)
    assert [chunk["shard"] for chunk in (first, moved, last)] == [SHARDS[0], SHARDS[1], SHARDS[0]]
    assert moved["max"] == {"key": 3500}
    assert 500 <= 3500 - moved["min"]["key"] <= 1100  # As much as is a chunk, of documents of 1 kB.
    # Only the start is given: the donor chooses the end, and there are less than 128 MB.
    client.admin.command("moveRange", namespace, min={"key": 3600}, toShard=SHARDS[1])
    assert chunks(client, namespace)[-1]["min"] == {"key": 3600}
    assert placement(client, namespace) == [SHARDS[0], SHARDS[1], SHARDS[0], SHARDS[1]]
    assert collection.count_documents({}) == 4000


@pytest.mark.parametrize(
    "options",
    [
        {"secondaryThrottle": True},
        {"secondaryThrottle": True, "writeConcern": {"w": 1}},
        {"_secondaryThrottle": False, "writeConcern": {"w": "majority"}},
        {"forceJumbo": True},
        {"_waitForDelete": True},
        {"waitForDelete": True, "maxTimeMS": 60_000},
    ],
    ids=str,
)
def test_move_chunk_options(client: Client, database: Database[Document], options: Document) -> None:
    collection = split_parts(database)
    reply = client.admin.command("moveChunk", collection.full_name, find={"key": 1}, to=SHARDS[1], **options)
    assert type(reply["millis"]) is int
    assert placement(client, collection.full_name) == [SHARDS[1], SHARDS[1]]
    assert collection.count_documents({}) == 100


def test_move_chunk_to_a_shard_by_its_address(
    client: Client, genuine: GenuineCluster, database: Database[Document]
) -> None:
    namespace = split_parts(database).full_name
    client.admin.command("split", namespace, middle={"key": 10})
    for key, to in ((1, genuine.connection_string(SHARDS[1])), (10, genuine.shards[SHARDS[1]])):
        client.admin.command("moveChunk", namespace, find={"key": key}, to=to)
    assert placement(client, namespace) == [SHARDS[1]] * 3


def test_set_allow_migrations(client: Client, database: Database[Document]) -> None:
    namespace = split_parts(database).full_name
    client.admin.command("setAllowMigrations", namespace, allowMigrations=False)
    with pytest.raises(OperationFailure, match="undergoing changes") as failure:
        client.admin.command("moveChunk", namespace, find={"key": 1}, to=SHARDS[1])
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress
    client.admin.command("setAllowMigrations", namespace, allowMigrations=True)
    client.admin.command("moveChunk", namespace, find={"key": 1}, to=SHARDS[1])
    assert placement(client, namespace) == [SHARDS[1], SHARDS[1]]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": {"key": 1}, "to": "nowhere"}, ErrorCode.ShardNotFound),
        ({"find": {"key": 1}, "to": 7}, ErrorCode.TypeMismatch),
        ({"find": {"key": 1}, "to": ""}, None),
        ({"find": {"key": 1}, "to": SHARDS[1], "secondaryThrottle": 1}, ErrorCode.TypeMismatch),
        ({"find": {"key": 1}, "bounds": [{"key": 1}, {"key": 2}], "to": SHARDS[1]}, None),
    ],
)
def test_move_chunk_refuses(client: Client, database: Database[Document], command: Document, code: int | None) -> None:
    namespace = f"{database.name}.ranged"
    client.admin.command("shardCollection", namespace, key={"key": 1})
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("moveChunk", namespace, **command)
    assert failure.value.code == code
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("moveChunk", f"{database.name}.unsharded", **command)
    assert failure.value.code == ErrorCode.NamespaceNotSharded


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"toShard": SHARDS[1]}, ErrorCode.InvalidOptions),
        ({"toShard": "nowhere", "min": {"key": 1}}, ErrorCode.ShardNotFound),
        ({"toShard": "", "min": {"key": 1}}, ErrorCode.NoSuchKey),
        ({"min": {"key": 1}}, 40414),
        ({"toShard": SHARDS[1], "min": {"other": 1}}, ErrorCode.StaleConfig),  # The donor says so.
        ({"toShard": SHARDS[1], "min": 1}, ErrorCode.TypeMismatch),
        ({"toShard": SHARDS[1], "max": {"other": 1}}, ErrorCode.InvalidOptions),
    ],
    ids=str,
)
def test_move_range_refuses(client: Client, database: Database[Document], command: Document, code: int) -> None:
    namespace = f"{database.name}.ranged"
    client.admin.command("shardCollection", namespace, key={"key": 1})
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("moveRange", namespace, **command)
    assert failure.value.code == code
    with pytest.raises(OperationFailure):
        client.admin.command("moveRange", f"{database.name}.unsharded", **command)
    assert placement(client, namespace) == [SHARDS[0]]


def test_indexes(database: Database[Document]) -> None:
    collection = split_parts(database)
    reply = database.command("createIndexes", "ranged", indexes=[{"key": {"even": 1}, "name": "even"}])
    assert {raw["numIndexesAfter"] for raw in reply["raw"].values()} == {3}
    assert len(reply["raw"]) == 2
    assert [index["name"] for index in collection.list_indexes()] == ["_id_", "key_1", "even"]
    collection.drop_index("even")
    assert [index["name"] for index in collection.list_indexes()] == ["_id_", "key_1"]
    with pytest.raises(OperationFailure) as failure:
        collection.create_index("even", unique=True)
    assert failure.value.code == ErrorCode.CannotCreateIndex


def test_statistics(client: Client, database: Database[Document]) -> None:
    split_parts(database)
    stats = database.command("collStats", "ranged")
    assert stats["sharded"] is True
    assert stats["nchunks"] == 2
    assert set(stats["shards"]) == set(SHARDS)
    # The donor's orphans are counted, as MongoDB does.
    assert stats["count"] == 150
    listed = {each["name"]: each for each in client.admin.command("listDatabases")["databases"]}
    assert set(listed[database.name]["shards"]) == set(SHARDS)
    assert {"admin", "config"} <= set(listed)
    assert "local" not in listed
    assert database.command("dbStats")["objects"] == 150
    assert database.command("validate", "ranged")["valid"] is True


def test_drop_and_rename(client: Client, database: Database[Document]) -> None:
    split_parts(database)
    database.unsharded.insert_one({"_id": 1})
    client.admin.command("renameCollection", f"{database.name}.unsharded", to=f"{database.name}.renamed")
    assert sorted(database.list_collection_names()) == ["ranged", "renamed"]
    database.drop_collection("ranged")
    assert database.list_collection_names() == ["renamed"]
    assert client.config.collections.find_one({"_id": f"{database.name}.ranged"}) is None
    assert list(database.ranged.find()) == []
    client.drop_database(database.name)
    assert client.config.databases.find_one({"_id": database.name}) is None
    assert database.name not in client.list_database_names()


def test_zones(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.zoned"
    client.admin.command("shardCollection", namespace, key={"key": 1})
    client.admin.command("addShardToZone", SHARDS[1], zone="east")
    bounds: Document = {"min": {"key": 0}, "max": {"key": 5}}
    client.admin.command("updateZoneKeyRange", namespace, **bounds, zone="east")
    [tag] = client.config.tags.find({"ns": namespace})
    assert (tag["min"], tag["max"], tag["tag"]) == ({"key": 0}, {"key": 5}, "east")
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("removeShardFromZone", SHARDS[1], zone="east")
    assert failure.value.code == ErrorCode.ZoneStillInUse
    client.admin.command("updateZoneKeyRange", namespace, **bounds, zone=None)
    client.admin.command("removeShardFromZone", SHARDS[1], zone="east")
    assert client.config.tags.count_documents({"ns": namespace}) == 0


def test_config_reads(client: Client, genuine: GenuineCluster) -> None:
    shards = {shard["_id"]: shard["host"] for shard in client.config.shards.find()}
    assert shards == {shard: genuine.connection_string(shard) for shard in SHARDS}
    assert [shard["_id"] for shard in client.admin.command("listShards")["shards"]] == list(SHARDS)
    version = client.config.version.find_one({})
    assert version is not None
    assert version["currentVersion"] == 6
    pipeline = [{"$group": {"_id": "$state", "n": {"$sum": 1}}}]
    assert list(client.config.shards.aggregate(pipeline)) == [{"_id": 1, "n": 2}]
    names = client.config.list_collection_names()
    assert {"chunks", "collections", "databases", "shards"} <= set(names)
    routers = {router["_id"] for router in client.config.mongos.find()}
    assert routers == set(genuine.routers)


def test_status_in_mongosh(genuine: GenuineCluster, database: Database[Document]) -> None:
    split_parts(database)
    output = run_script(genuine.uri(), SCRIPTS / "status.js").check()
    assert all(f"_id: '{shard}'" in output for shard in SHARDS)
    assert f"{database.name}.ranged" in output
