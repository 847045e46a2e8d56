"""``shardCollection`` in all its forms, and the resulting documents in the catalog."""

from collections import Counter
from collections.abc import Callable

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.sharded import (
    LOWER,
    UPPER,
    Document,
    assert_tiled,
    catalog_entry,
    changes,
    chunks,
    lastmods,
    placement,
    shard_collection,
)
from tests.local_cluster import Client


def code_of(action: Callable[[], object]) -> int | None:
    """The code with which an action fails."""
    with pytest.raises(OperationFailure) as caught:
        action()
    return caught.value.code


def index_keys(mongod: Client, namespace: str) -> list[Document]:
    """The keys of the indexes on one shard."""
    name, _, collection = namespace.partition(".")
    return [dict(index["key"]) for index in mongod[name][collection].list_indexes()]


def test_the_primary_shard_of_a_database_is_named_by_its_members(client: Client) -> None:
    [shard] = client.config.shards.find({"_id": UPPER})
    address = shard["host"]
    for identifier in (address, address.partition("/")[2].partition(",")[0]):
        client.drop_database("named_by_members")
        client.admin.command("enableSharding", "named_by_members", primaryShard=identifier)
        assert client.config.databases.count_documents({"_id": "named_by_members", "primary": UPPER}) == 1
    client.drop_database("named_by_members")


def test_a_key_of_another_type_of_number(client: Client, database: Database[Document]) -> None:
    """Shells send doubles; the key is the same, and so is the index."""
    database.c.insert_one({"_id": 1, "a": 1})
    database.c.create_index([("_id", 1), ("a", 1)], unique=True)
    namespace = f"{database.name}.c"
    for value in (1.0, 1, Int64(1)):
        assert client.admin.command("shardCollection", namespace, key={"_id": value}, unique=True)["ok"] == 1
    epoch = (catalog_entry(client, namespace) or {})["lastmodEpoch"]
    client.admin.command("refineCollectionShardKey", namespace, key={"_id": Int64(1)})
    assert (catalog_entry(client, namespace) or {})["lastmodEpoch"] == epoch
    client.admin.command("refineCollectionShardKey", namespace, key={"_id": 1.0, "a": Int64(1)})
    assert (catalog_entry(client, namespace) or {})["lastmodEpoch"] != epoch


def test_range(client: Client, database: Database[Document], lower_mongod: Client) -> None:
    namespace = f"{database.name}.c"
    assert shard_collection(database, "c", {"key": 1})["collectionsharded"] == namespace
    entry = catalog_entry(client, namespace)
    assert entry is not None
    assert (entry["key"], entry["unique"]) == ({"key": 1}, False)
    assert isinstance(entry["lastmodEpoch"], ObjectId)
    assert isinstance(entry["timestamp"], Timestamp)
    [chunk] = chunks(client, namespace)
    assert (chunk["min"], chunk["max"]) == ({"key": MinKey()}, {"key": MaxKey()})
    assert (chunk["shard"], lastmods(client, namespace)) == (LOWER, [(1, 0)])
    assert chunk["history"] == [{"validAfter": entry["timestamp"], "shard": LOWER}]
    assert index_keys(lower_mongod, namespace) == [{"_id": 1}, {"key": 1}]
    [stored] = lower_mongod[database.name].list_collections()
    assert Binary.from_uuid(entry["uuid"]) == Binary.from_uuid(stored["info"]["uuid"].as_uuid())
    [started], [ended] = (changes(client, namespace, f"shardCollection.{each}") for each in ("start", "end"))
    assert started["details"]["shardKey"] == {"key": 1}
    assert ended["details"]["numChunks"] == 1


def test_hashed_collection_is_distributed_at_once(
    client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    namespace = f"{database.name}.c"
    shard_collection(database, "c", {"key": "hashed"})
    found = chunks(client, namespace)
    assert Counter(placement(client, namespace)) == {LOWER: 2, UPPER: 2}
    assert lastmods(client, namespace) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert_tiled(found)
    assert (found[0]["min"], found[-1]["max"]) == ({"key": MinKey()}, {"key": MaxKey()})
    uuids = set()
    for mongod in (lower_mongod, upper_mongod):
        assert index_keys(mongod, namespace) == [{"_id": 1}, {"key": "hashed"}]
        uuids |= {bytes(each["info"]["uuid"]) for each in mongod[database.name].list_collections()}
    assert len(uuids) == 1


@pytest.mark.parametrize(("asked", "made"), [(2, 2), (8, 8), (100, 100)])
def test_number_of_initial_chunks(client: Client, database: Database[Document], asked: int, made: int) -> None:
    shard_collection(database, "c", {"key": "hashed"}, numInitialChunks=asked)
    found = placement(client, f"{database.name}.c")
    assert len(found) == made
    assert Counter(found) == {LOWER: made // 2, UPPER: made // 2}


def test_compound(client: Client, database: Database[Document]) -> None:
    shard_collection(database, "c", {"a": 1, "b.c": 1})
    [chunk] = chunks(client, f"{database.name}.c")
    assert list(chunk["min"]) == ["a", "b.c"]


@pytest.mark.parametrize("key", [{"a": "hashed", "b": 1}, {"a": 1, "b": "hashed"}])
def test_compound_hashed(client: Client, database: Database[Document], key: Document) -> None:
    shard_collection(database, "c", key)
    found = chunks(client, f"{database.name}.c")
    assert_tiled(found)
    assert {*placement(client, f"{database.name}.c")} == ({LOWER, UPPER} if key["a"] == "hashed" else {LOWER})
    database.c.insert_many({"a": n % 5, "b": n} for n in range(100))
    assert database.c.count_documents({}) == 100
    assert [document["b"] for document in database.c.find({"a": 3, "b": 8})] == [8]


def test_unique(client: Client, database: Database[Document]) -> None:
    shard_collection(database, "c", {"key": 1}, unique=True)
    entry = catalog_entry(client, f"{database.name}.c")
    assert entry is not None
    assert entry["unique"] is True
    database.c.insert_one({"key": 1})
    assert code_of(lambda: database.c.insert_one({"key": 1})) == 11000


def test_default_collation_is_not_that_of_the_key(client: Client, database: Database[Document]) -> None:
    database.create_collection("c", collation={"locale": "en", "strength": 2})
    assert code_of(lambda: shard_collection(database, "c", {"key": 1})) == 2
    shard_collection(database, "c", {"key": 1}, collation={"locale": "simple"})
    entry = catalog_entry(client, f"{database.name}.c")
    assert entry is not None
    assert entry["defaultCollation"]["locale"] == "en"
    client.admin.command("split", f"{database.name}.c", middle={"key": "b"})
    client.admin.command("moveChunk", f"{database.name}.c", find={"key": "b"}, to=UPPER)
    database.c.insert_many([{"_id": 1, "key": "A"}, {"_id": 2, "key": "a"}, {"_id": 3, "key": "c"}])
    # Upper case sorts before lower case, but the collation makes them equal, so both shards must be targeted.
    assert sorted(document["_id"] for document in database.c.find({"key": "a"})) == [1, 2]
    assert [document["_id"] for document in database.c.find({"key": "C"})] == [3]


def test_zones_place_the_first_chunks(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.c"
    for shard, zone in ((LOWER, "integration_low"), (UPPER, "integration_high")):
        client.admin.command("addShardToZone", shard, zone=zone)
    client.admin.command("updateZoneKeyRange", namespace, min={"key": 0}, max={"key": 10}, zone="integration_low")
    client.admin.command("updateZoneKeyRange", namespace, min={"key": 10}, max={"key": 20}, zone="integration_high")
    try:
        shard_collection(database, "c", {"key": 1})
        found = {chunk["min"]["key"]: chunk["shard"] for chunk in chunks(client, namespace)}
        assert set(found) == {MinKey(), 0, 10, 20}
        assert (found[0], found[10]) == (LOWER, UPPER)
    finally:
        database.c.drop()
        for shard, zone in ((LOWER, "integration_low"), (UPPER, "integration_high")):
            client.admin.command("removeShardFromZone", shard, zone=zone)


def test_presplit_hashed_zones(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.c"
    for shard, zone in ((LOWER, "integration_low"), (UPPER, "integration_high")):
        client.admin.command("addShardToZone", shard, zone=zone)
    for low, high, zone in ((0, 10, "integration_low"), (10, 20, "integration_high")):
        client.admin.command(
            "updateZoneKeyRange", namespace, min={"a": low, "b": MinKey()}, max={"a": high, "b": MinKey()}, zone=zone
        )
    try:
        shard_collection(database, "c", {"a": 1, "b": "hashed"}, presplitHashedZones=True, numInitialChunks=4)
        found = chunks(client, namespace)
        assert_tiled(found)
        zoned = {a: [chunk["shard"] for chunk in found if chunk["min"]["a"] == a] for a in (0, 10)}
        assert set(zoned[0]) == {LOWER}
        assert set(zoned[10]) == {UPPER}
        assert len(zoned[0]) == len(zoned[10]) == 2
    finally:
        database.c.drop()
        for shard, zone in ((LOWER, "integration_low"), (UPPER, "integration_high")):
            client.admin.command("removeShardFromZone", shard, zone=zone)


def test_existing_documents_with_an_index(client: Client, database: Database[Document]) -> None:
    database.c.insert_many({"_id": n, "key": n} for n in range(100))
    database.c.create_index([("key", 1), ("other", 1)])
    shard_collection(database, "c", {"key": 1})
    assert placement(client, f"{database.name}.c") == [LOWER]
    assert database.c.count_documents({}) == 100
    client.admin.command("split", f"{database.name}.c", middle={"key": 1000})
    client.admin.command("moveChunk", f"{database.name}.c", find={"key": 1000}, to=UPPER)
    database.c.insert_one({"_id": 2000, "key": 2000})
    assert [document["key"] for document in database.c.find().sort("key", -1).limit(2)] == [2000, 99]


def test_existing_documents_without_an_index(client: Client, database: Database[Document]) -> None:
    database.c.insert_one({"key": 1})
    assert code_of(lambda: shard_collection(database, "c", {"key": 1})) == 72
    assert catalog_entry(client, f"{database.name}.c") is None
    assert database.c.count_documents({}) == 1


def test_existing_hashed_documents_stay_on_one_shard(client: Client, database: Database[Document]) -> None:
    database.c.insert_many({"key": n} for n in range(100))
    database.c.create_index([("key", "hashed")])
    shard_collection(database, "c", {"key": "hashed"})
    assert set(placement(client, f"{database.name}.c")) == {LOWER}
    assert database.c.count_documents({"key": 50}) == 1


def test_same_again_and_another_key(client: Client, database: Database[Document]) -> None:
    namespace = f"{database.name}.c"
    shard_collection(database, "c", {"key": 1})
    before = catalog_entry(client, namespace)
    shard_collection(database, "c", {"key": 1})
    assert catalog_entry(client, namespace) == before
    assert code_of(lambda: shard_collection(database, "c", {"other": 1})) == 23
    assert code_of(lambda: shard_collection(database, "c", {"key": 1}, unique=True)) == 23


@pytest.mark.parametrize(
    ("key", "options", "code"),
    [
        ({}, {}, 2),
        ({"key": -1}, {}, 2),
        ({"key": "text"}, {}, 2),
        ({"a": "hashed", "b": "hashed"}, {}, 2),
        ({"key": "hashed"}, {"unique": True}, None),
        ({"key": 1}, {"numInitialChunks": 4}, 72),
        ({"key": 1}, {"collation": {"locale": "en"}}, 2),
    ],
)
def test_refused(client: Client, database: Database[Document], key: Document, options: Document, code: int) -> None:
    raised = code_of(lambda: shard_collection(database, "c", key, **options))
    assert code is None or raised == code
    assert catalog_entry(client, f"{database.name}.c") is None


def test_drop_leaves_nothing(
    client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    namespace = f"{database.name}.c"
    shard_collection(database, "c", {"key": "hashed"})
    entry = catalog_entry(client, namespace)
    assert entry is not None
    database.c.insert_many({"key": n} for n in range(20))
    database.c.drop()
    assert catalog_entry(client, namespace) is None
    assert client.config.chunks.count_documents({"uuid": Binary.from_uuid(entry["uuid"])}) == 0
    for mongod in (lower_mongod, upper_mongod):
        assert mongod[database.name].list_collection_names() == []
    assert changes(client, namespace, "dropCollection")
