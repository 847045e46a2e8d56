"""``checkMetadataConsistency`` finds each kind of damage, which the test makes, and nothing in a sound cluster."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp
from pymongo.database import Database

from shardwright.deploy.cli import EXIT_INCONSISTENT
from shardwright.deploy.cli import main as shardwright
from tests.fail_points import fail_point
from tests.integration.sharded import CATALOG_OPTIONS, LOWER, SPLIT_AT, UPPER, Document, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster


@pytest.fixture
def config(cluster: RunningCluster) -> Iterator[Database[Document]]:
    """The catalog itself, past the config daemon."""
    with cluster.direct("config.0.mongod") as client:
        yield client.get_database("config", CATALOG_OPTIONS)


def found(database: Database[Document], **options: Any) -> list[Document]:  # noqa: ANN401 - arguments of any type
    reply = database.command("checkMetadataConsistency", 1, **options)
    assert (reply["cursor"]["id"], reply["cursor"]["ns"]) == (0, f"{database.name}.$cmd.aggregate")
    inconsistencies: list[Document] = reply["cursor"]["firstBatch"]
    return inconsistencies


def kinds(inconsistencies: Sequence[Document]) -> list[str]:
    return [each["type"] for each in inconsistencies]


class Damage:
    """Damage to the collection ``ranged``; each method returns a function that undoes it."""

    def __init__(self, config: Database[Document], placed: Documents, lower: Client, upper: Client) -> None:
        self.config, self.placed = config, placed
        self.lower, self.upper = (client[placed.database.name] for client in (lower, upper))
        entry = config["collections"].find_one({"_id": placed.full_name})
        assert entry is not None
        self.about = {"uuid": entry["uuid"]}

    def _chunk(self, query: Document, change: Document) -> Callable[[], object]:
        before = self.config.chunks.find_one_and_update({**self.about, **query}, {"$set": change})
        assert before is not None
        return lambda: self.config.chunks.replace_one({"_id": before["_id"]}, before)

    def gap(self) -> Callable[[], object]:
        return self._chunk({"shard": LOWER}, {"max": {"key": SPLIT_AT - 1}})

    def overlap(self) -> Callable[[], object]:
        return self._chunk({"shard": LOWER}, {"max": {"key": SPLIT_AT + 1}})

    def no_min_key(self) -> Callable[[], object]:
        return self._chunk({"shard": LOWER}, {"min": {"key": 0}})

    def chunk_elsewhere(self) -> Callable[[], object]:
        return self._chunk({"shard": UPPER}, {"shard": "nowhere"})

    def older_chunks(self) -> Callable[[], object]:
        """As if the catalog had been restored from a backup."""
        return self._chunk({"shard": LOWER}, {"lastmod": Timestamp(1, 0)})

    def other_options(self) -> Callable[[], object]:
        self.upper.command("collMod", "ranged", validator={"key": {"$gte": 0}})
        return lambda: self.upper.command("collMod", "ranged", validator={})

    def other_collation(self) -> Callable[[], object]:
        """Of the entry: both shards have none."""
        name = {"_id": self.placed.full_name}
        self.config["collections"].update_one(name, {"$set": {"defaultCollation": {"locale": "fr"}}})
        return lambda: self.config["collections"].update_one(name, {"$unset": {"defaultCollation": 1}})

    def temporary(self) -> Callable[[], object]:
        self.lower.create_collection(f"system.resharding.{uuid4()}")
        return lambda: [
            self.lower.drop_collection(each) for each in self.lower.list_collection_names() if "resh" in each
        ]

    def no_max_key(self) -> Callable[[], object]:
        return self._chunk({"shard": UPPER}, {"max": {"key": SPLIT_AT + 1}})

    def other_key(self) -> Callable[[], object]:
        return self._chunk({"shard": UPPER}, {"max": {"other": MaxKey()}})

    def no_chunks(self) -> Callable[[], object]:
        before = list(self.config.chunks.find(self.about))
        self.config.chunks.delete_many(self.about)
        return lambda: self.config.chunks.insert_many(before)

    def _zones(self, *zones: tuple[Document, Document]) -> Callable[[], object]:
        about = {"ns": self.placed.full_name}
        self.config.tags.insert_many([{**about, "min": low, "max": high, "tag": "z"} for low, high in zones])
        return lambda: self.config.tags.delete_many(about)

    def zones(self) -> Callable[[], object]:
        return self._zones(({"key": 0}, {"key": 10}), ({"key": 9}, {"key": 20}))

    def zone_of_other_key(self) -> Callable[[], object]:
        return self._zones(({"other": 0}, {"other": 10}))

    def other_uuid(self) -> Callable[[], object]:
        """The collection on ``shard1`` is another one."""
        self.upper.drop_collection("ranged")
        self.upper.create_collection("ranged")
        return lambda: self._recreate(self.upper)

    def no_collection(self) -> Callable[[], object]:
        self.upper.drop_collection("ranged")
        return lambda: self._recreate(self.upper)

    def _recreate(self, database: Database[Document]) -> None:
        database.drop_collection("ranged")
        create = {
            "op": "c",
            "ns": f"{database.name}.$cmd",
            "ui": Binary.from_uuid(self.about["uuid"]),
            "o": {"create": "ranged"},
        }
        database.client.admin.command("applyOps", [create])
        database.ranged.create_index("key")

    def no_index(self) -> Callable[[], object]:
        self.upper.ranged.drop_index("key_1")
        return lambda: self.upper.ranged.create_index("key")

    def orphans(self) -> Callable[[], object]:
        self.upper.ranged.insert_one({"_id": "orphan", "key": SPLIT_AT - 1})
        return lambda: self.upper.ranged.delete_one({"_id": "orphan"})

    def misplaced(self) -> Callable[[], object]:
        self.upper.stray.insert_one({})
        return lambda: self.upper.drop_collection("stray")


@pytest.fixture
def damage(config: Database[Document], placed: Documents, lower_mongod: Client, upper_mongod: Client) -> Damage:
    """Ways to damage the collection ``ranged``."""
    return Damage(config, placed, lower_mongod, upper_mongod)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gap", "RoutingTableRangeGap"),
        ("overlap", "RoutingTableRangeOverlap"),
        ("no_min_key", "RoutingTableMissingMinKey"),
        ("no_max_key", "RoutingTableMissingMaxKey"),
        ("no_chunks", "MissingRoutingTable"),
        ("zones", "ZonesRangeOverlap"),
        ("zone_of_other_key", "CorruptedZoneShardKey"),
        ("chunk_elsewhere", "ChunkOnUnknownShard"),
        ("other_options", "CollectionOptionsMismatch"),
        ("other_collation", "CollectionOptionsMismatch"),
        ("temporary", "StrayTemporaryCollection"),
        ("other_uuid", "CollectionUUIDMismatch"),
        ("no_collection", "MissingLocalCollection"),
        ("no_index", "MissingShardKeyIndex"),
        ("orphans", "OrphanedDocuments"),
        ("misplaced", "MisplacedCollection"),
    ],
)
def test_damage_is_found(database: Database[Document], damage: Damage, kind: str, expected: str) -> None:
    assert found(database) == []
    undo = getattr(damage, kind)()
    try:
        (only,) = found(database)
    finally:
        undo()
    assert only["type"] == expected
    assert only["details"]["namespace"].startswith(f"{database.name}.")
    assert found(database) == []


def test_a_chunk_of_another_key_is_found(database: Database[Document], damage: Damage) -> None:
    undo = damage.other_key()
    try:
        inconsistencies = found(database)
    finally:
        undo()
    assert kinds(inconsistencies) == ["CorruptedChunkShardKey", "RoutingTableMissingMaxKey"]
    assert inconsistencies[0]["details"]["shardKeyPattern"] == {"key": 1}


def test_a_catalog_that_is_older_than_what_the_shards_know_is_found(
    database: Database[Document], damage: Damage
) -> None:
    undo = damage.older_chunks()
    try:
        inconsistencies = found(database)
    finally:
        undo()
    assert set(kinds(inconsistencies)) == {"ShardCatalogCacheCollectionMetadataMismatch"}
    assert LOWER in {each["details"]["shard"] for each in inconsistencies}
    assert found(database) == []


def test_options_are_told_with_the_shards_that_have_them(database: Database[Document], damage: Damage) -> None:
    undo = damage.other_options()
    try:
        (only,) = found(database)
    finally:
        undo()
    upper = {"validator": {"key": {"$gte": 0}}, "validationLevel": "strict", "validationAction": "error"}
    assert only["details"]["options"] == [{"options": {}, "shards": [LOWER]}, {"options": upper, "shards": [UPPER]}]


def test_an_older_entry_of_a_database_is_found(database: Database[Document], config: Database[Document]) -> None:
    """The router reads it again and again, and the primary shard refuses it as often."""
    assert found(database) == []
    config.databases.update_one({"_id": database.name}, {"$inc": {"version.lastMod": -1}})
    try:
        database.client.admin.command("flushRouterConfig")
        (only,) = found(database)
    finally:
        config.databases.update_one({"_id": database.name}, {"$inc": {"version.lastMod": 1}})
    assert (only["type"], only["details"]["namespace"]) == ("OutdatedDatabaseEntry", database.name)
    assert only["details"]["shard"] == LOWER
    database.client.admin.command("flushRouterConfig")
    assert found(database) == []


def test_orphans_of_a_range_deletion_are_no_damage(database: Database[Document], placed: Documents) -> None:
    """They are hidden, and will be deleted."""
    placed.insert_many({"key": key} for key in range(10))
    database.client.admin.command("moveChunk", placed.full_name, find={"key": 0}, to=UPPER)
    assert found(database) == []


def test_range_deletions_of_a_former_collection_are_not_compared(
    cluster: RunningCluster, database: Database[Document], placed: Documents
) -> None:
    """They may have bounds of another shard key."""
    placed.insert_many({"_id": n, "key": n, "other": n} for n in range(10))
    with cluster.direct("shard0.0.shardd") as donor, fail_point(donor, "suspendRangeDeletion"):
        database.client.admin.command("moveChunk", placed.full_name, find={"key": 0}, to=UPPER)
        placed.create_index([("other", 1), ("key", 1)])
        database.client.admin.command("reshardCollection", placed.full_name, key={"other": 1, "key": 1})
        assert found(database) == []


def test_one_collection_can_be_checked_alone(database: Database[Document], damage: Damage) -> None:
    undo = damage.gap()
    try:
        reply = database.command("checkMetadataConsistency", "ranged")
        assert kinds(reply["cursor"]["firstBatch"]) == ["RoutingTableRangeGap"]
        assert database.command("checkMetadataConsistency", "other")["cursor"]["firstBatch"] == []
    finally:
        undo()


def test_indexes_are_compared_on_request(database: Database[Document], placed: Documents, upper_mongod: Client) -> None:
    placed.create_index("b")
    assert found(database, checkIndexes=True) == []
    upper_mongod[database.name].ranged.drop_index("b_1")
    assert found(database) == []
    (only,) = found(database, checkIndexes=True)
    assert (only["type"], only["details"]["info"]["indexName"]) == ("InconsistentIndex", "b_1")
    assert only["details"]["info"]["missingFromShards"] == [UPPER]


def test_the_whole_cluster_is_checked(
    client: Client,
    config: Database[Document],
    upper_mongod: Client,
    cluster: RunningCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The catalog has a collection without a database, chunks without a collection, and a database without a shard;
    and a shard has a database that is not in the catalog."""
    hidden = {"_id": "no_such_database.c", "uuid": Binary.from_uuid(uuid4()), "key": {"x": 1}, "unique": False}
    config["collections"].insert_one(hidden)
    upper_mongod.stray_database.c.insert_one({})
    stray = {"uuid": Binary.from_uuid(uuid4()), "min": {"x": MinKey()}, "max": {"x": MaxKey()}, "shard": UPPER}
    config.chunks.insert_one({**stray, "lastmod": Timestamp(1, 0)})
    version = {"uuid": Binary.from_uuid(uuid4()), "timestamp": Timestamp(1, 1), "lastMod": 1}
    config.databases.insert_one({"_id": "lost_database", "primary": "nowhere", "version": version})
    try:
        eventually(lambda: len(about_these(found(client.admin))) == 4)
        inconsistencies = about_these(found(client.admin))
        kinds_expected = ["StrayChunks", "DatabaseOnUnknownShard", "HiddenShardedCollection", "StrayDatabase"]
        assert kinds(inconsistencies) == kinds_expected
        assert inconsistencies[0]["details"]["collectionUUID"] == stray["uuid"]
        assert shardwright(["check", "--dir", str(cluster.directory)]) == EXIT_INCONSISTENT
        printed = capsys.readouterr().out
        assert "  lost_database: DatabaseOnUnknownShard: Found a database whose primary shard does not exist" in printed
        assert (
            '  stray_database: StrayDatabase: Found a database on a shard that is not in the catalog {"shard"'
            in printed
        )
    finally:
        config.chunks.delete_one({"uuid": stray["uuid"]})
        config.databases.delete_one({"_id": "lost_database"})
        config["collections"].delete_one({"_id": hidden["_id"]})
        upper_mongod.drop_database("stray_database")
    assert about_these(found(client.admin)) == []


def about_these(inconsistencies: Sequence[Document]) -> list[Document]:
    """Select this test's inconsistencies: the cluster is shared with tests that leave their own."""
    names = ("no_such_database.c", "stray_database", "lost_database", "config.chunks")
    return [each for each in inconsistencies if each["details"]["namespace"] in names]


def test_shell_helper_arguments_are_accepted(database: Database[Document], placed: Documents) -> None:
    arguments: dict[str, Any] = {"checkIndexes": True, "cursor": {"batchSize": 10}}
    assert found(database, **arguments) == []
    assert shard_by_range(database, "second").estimated_document_count() == 0
    assert found(database, **arguments) == []
