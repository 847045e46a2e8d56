"""All kinds of changes of collections and databases: prerequisites, places where they can wait, and results.

Each works on a database of its own in which ``things`` is sharded on ``key``, with chunks on both shards. Clients write
to it during the change, unless the change concerns the whole database.
"""

from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from typing import ClassVar, Final

from bson import MaxKey, MinKey

from shardwright.wire.error_codes import ErrorCode
from tests.ddl.places import BEGIN, END, Place, config_coordinator_at, coordinator_at, mongod_at
from tests.integration.sharded import LOWER, UPPER, Document, catalog_entry, chunks, placement, shard_by_range
from tests.local_cluster import Client
from tests.migration.fault_cluster import CONFIG

THINGS: Final = "things"

COMMIT: Final = mongod_at(CONFIG, "applyOps")
"""The catalog is being changed, by the first of its transactions."""


class Change(ABC):
    """A change of a database or one of its collections.

    Args:
        db: the database.
    """

    name: ClassVar[str]
    places: ClassVar[tuple[Place, ...]]
    done: ClassVar[frozenset[int]] = frozenset()
    """Errors by which a repeated request learns that the change has been made."""

    repeated: ClassVar[frozenset[int]] = frozenset()
    """Errors after which nothing has been changed, and the request is repeated."""

    refused: ClassVar[frozenset[int]] = frozenset()
    """Errors that are the right answer, to a request that leaves everything as it was."""

    has_sharded_things: ClassVar[bool] = True
    """Whether ``things`` is sharded before the change."""

    def __init__(self, db: str) -> None:
        self.db = db

    @property
    def writers_db(self) -> str:
        """The database of the collection that clients write during the change."""
        return self.db

    def prepare(self, router: Client) -> None:  # noqa: B027 - most need nothing
        """Create what the change needs besides ``things``."""

    @abstractmethod
    def request(self) -> tuple[str, Document]:
        """The client's command, and the database it is run on."""

    @abstractmethod
    def check(self, router: Client) -> None:
        """Check that the change has been made as a whole.

        Raises:
            AssertionError: it has not.
        """

    def undo(self, router: Client) -> None:  # noqa: B027 - most need not
        """Undo what keeps the chunks of ``things`` from being moved."""

    def _namespace(self, name: str = THINGS) -> str:
        return f"{self.db}.{name}"

    def _fill(self, router: Client, name: str, count: int = 10) -> None:
        router[self.db][name].insert_many([{"_id": n, "key": n * 100} for n in range(count)])

    def _check_filled(self, router: Client, name: str, count: int = 10) -> None:
        assert sorted(each["_id"] for each in router[self.db][name].find()) == list(range(count))


class ShardCollection(Change):
    """A collection that clients write to."""

    name = "shardCollection"
    places = coordinator_at("createCollection_V2", "commit", END)
    has_sharded_things = False

    def prepare(self, router: Client) -> None:
        router[self.db][THINGS].create_index("key")

    def request(self) -> tuple[str, Document]:
        return "admin", {"shardCollection": self._namespace(), "key": {"key": 1}}

    def check(self, router: Client) -> None:
        assert placement(router, self._namespace()) == [LOWER]


class ShardNewCollection(Change):
    """A collection that does not exist yet, with chunks on both shards."""

    name = "shardCollection (new)"
    places = (*coordinator_at("createCollection_V2", "commit", END), COMMIT)

    def request(self) -> tuple[str, Document]:
        return "admin", {"shardCollection": self._namespace("fresh"), "key": {"_id": "hashed"}, "numInitialChunks": 4}

    def check(self, router: Client) -> None:
        assert sorted(placement(router, self._namespace("fresh"))) == [LOWER, LOWER, UPPER, UPPER]
        self._fill(router, "fresh")
        self._check_filled(router, "fresh")


class ShardSeries(Change):
    """A time-series collection with measurements, which is sharded by way of its buckets."""

    name = "shardCollection (time series)"
    places = (*coordinator_at("createCollection_V2", "commit", END), COMMIT)

    def prepare(self, router: Client) -> None:
        router[self.db].command("create", "series", timeseries={"timeField": "at", "metaField": "sensor"})
        router[self.db].series.create_index("sensor")
        self._measure(router, 0)

    def request(self) -> tuple[str, Document]:
        options = {"timeField": "at", "metaField": "sensor"}
        return "admin", {"shardCollection": self._namespace("series"), "key": {"sensor": 1}, "timeseries": options}

    def check(self, router: Client) -> None:
        buckets = self._namespace("system.buckets.series")
        entry = catalog_entry(router, buckets)
        assert entry is not None
        assert entry["key"] == {"meta": 1}
        assert entry["timeseriesFields"]["timeField"] == "at"
        assert placement(router, buckets) == [LOWER]
        self._measure(router, 24)
        router.admin.command("split", buckets, middle={"meta": 2})
        router.admin.command("moveChunk", buckets, find={"meta": 2}, to=UPPER)
        series = router[self.db].series
        assert sorted(each["hour"] for each in series.find()) == list(range(48))
        assert series.count_documents({"sensor": 3}) == 12

    def _measure(self, router: Client, first: int) -> None:
        """Insert the measurements of 24 hours by four sensors in turn."""
        midnight, hours = datetime(2024, 1, 1), range(first, first + 24)
        measurements = [{"at": midnight + timedelta(hours=hour), "sensor": hour % 4, "hour": hour} for hour in hours]
        router[self.db].series.insert_many(measurements)


class ShardNewSeries(Change):
    """A time-series collection that does not exist yet."""

    name = "shardCollection (new time series)"
    places = (*coordinator_at("createCollection_V2", "commit", END), COMMIT)

    def request(self) -> tuple[str, Document]:
        options = {"timeField": "at", "metaField": "sensor", "granularity": "minutes"}
        key = {"sensor": "hashed"}
        return "admin", {"shardCollection": self._namespace("series"), "key": key, "timeseries": options}

    def check(self, router: Client) -> None:
        entry = catalog_entry(router, self._namespace("system.buckets.series"))
        assert entry is not None
        assert (entry["key"], entry["timeseriesFields"]["granularity"]) == ({"meta": "hashed"}, "minutes")
        assert set(placement(router, self._namespace("system.buckets.series"))) == {LOWER, UPPER}
        at = datetime(2024, 1, 1)
        router[self.db].series.insert_many([{"at": at, "sensor": sensor} for sensor in range(20)])
        assert sorted(each["sensor"] for each in router[self.db].series.find()) == list(range(20))


class DropSharded(Change):
    """A sharded collection."""

    name = "drop"
    places: ClassVar[tuple[Place, ...]] = (*coordinator_at("dropCollection", "dropCollection", END), COMMIT)

    def prepare(self, router: Client) -> None:
        shard_by_range(router[self.db], "other")
        self._fill(router, "other")

    def request(self) -> tuple[str, Document]:
        return self.db, {"drop": "other"}

    def check(self, router: Client) -> None:
        assert catalog_entry(router, self._namespace("other")) is None
        assert "other" not in router[self.db].list_collection_names()
        self._fill(router, "other", 5)
        self._check_filled(router, "other", 5)


class DropUnsharded(DropSharded):
    """An unsharded collection."""

    name = "drop (unsharded)"
    places = coordinator_at("dropCollection", "dropCollection", END)

    def prepare(self, router: Client) -> None:
        self._fill(router, "other")


class DropDatabase(Change):
    """A database with two sharded collections and an unsharded one."""

    name = "dropDatabase"
    places = coordinator_at("dropDatabase", "drop", "drop", "drop", END)

    @property
    def writers_db(self) -> str:
        return f"{self.db}_beside"

    def prepare(self, router: Client) -> None:
        router.admin.command("enableSharding", self.db, primaryShard=LOWER)
        for name in ("first", "second"):
            shard_by_range(router[self.db], name)
            self._fill(router, name)
        self._fill(router, "plain")

    def request(self) -> tuple[str, Document]:
        return self.db, {"dropDatabase": 1}

    def check(self, router: Client) -> None:
        assert self.db not in router.list_database_names()
        assert router.config.databases.find_one({"_id": self.db}) is None
        assert catalog_entry(router, self._namespace("first")) is None
        self._fill(router, "first", 5)
        self._check_filled(router, "first", 5)


class Modify(Change):
    """The options of a sharded collection, on both shards."""

    name = "collMod"
    places = coordinator_at("collMod_V2", "BlockShards", "UpdateShards", "UpdateShards", END)

    def request(self) -> tuple[str, Document]:
        return self.db, {"collMod": THINGS, "validationLevel": "moderate"}

    def check(self, router: Client) -> None:
        (entry,) = router[self.db].list_collections(filter={"name": THINGS})
        assert entry["options"]["validationLevel"] == "moderate"


class Granularity(Change):
    """The granularity of a sharded time-series collection, by which routers target."""

    name = "collMod (granularity)"
    # Not the beginning and the end, which are those of any `collMod`.
    places = coordinator_at("collMod_V2", *["BlockShards"] * 2, "UpdateConfig", "UpdateShards")[1:]

    def prepare(self, router: Client) -> None:
        admin, options = router.admin, {"timeField": "at", "metaField": "sensor"}
        noon = {"meta": 1, "control.min.at": self._at(12)}
        admin.command("shardCollection", self._namespace("series"), key={"sensor": 1, "at": 1}, timeseries=options)
        admin.command("split", self._buckets, middle=noon)
        admin.command("moveChunk", self._buckets, find=noon, to=UPPER)
        router[self.db].series.insert_many([{"at": self._at(hour), "sensor": 1, "hour": hour} for hour in range(24)])

    def request(self) -> tuple[str, Document]:
        return self.db, {"collMod": "series", "timeseries": {"granularity": "hours"}}

    def check(self, router: Client) -> None:
        entry = catalog_entry(router, self._buckets)
        assert entry is not None
        assert entry["timeseriesFields"]["bucketMaxSpanSeconds"] == 30 * 86_400
        # It belongs to a bucket that begins at midnight, on the other shard than most of the same afternoon.
        router[self.db].series.insert_one({"at": self._at(20.5), "sensor": 1, "hour": 20.5})
        found = router[self.db].series.find({"sensor": 1, "at": {"$gte": self._at(20)}}).sort("at")
        assert [each["hour"] for each in found] == [20, 20.5, 21, 22, 23]
        midnight = {"meta": 1, "control.min.at": self._at(0)}
        router.admin.command("moveChunk", self._buckets, find=midnight, to=UPPER)
        assert router[self.db].series.count_documents({}) == 25

    @property
    def _buckets(self) -> str:
        return self._namespace("system.buckets.series")

    @staticmethod
    def _at(hour: float) -> datetime:
        return datetime(2024, 1, 1) + timedelta(hours=hour)


class Rename(Change):
    """A sharded collection over another one."""

    name = "renameCollection"
    places = (
        *coordinator_at(
            "renameCollection",
            *("freezeMigrations", "freezeTargetMigrations", "blockCRUDAndRename", "renameMetadata", "unblockCRUD", END),
        ),
        COMMIT,
    )
    done = frozenset({ErrorCode.NamespaceNotFound})

    def prepare(self, router: Client) -> None:
        for name, count in (("other", 10), ("target", 7)):
            shard_by_range(router[self.db], name)
            self._fill(router, name, count)

    def request(self) -> tuple[str, Document]:
        return "admin", {
            "renameCollection": self._namespace("other"),
            "to": self._namespace("target"),
            "dropTarget": True,
        }

    def check(self, router: Client) -> None:
        assert catalog_entry(router, self._namespace("other")) is None
        assert placement(router, self._namespace("target")) == [LOWER, UPPER]
        self._check_filled(router, "target")
        assert router[self.db].other.count_documents({}) == 0
        router.admin.command("moveChunk", self._namespace("target"), find={"key": 0}, to=UPPER)
        self._check_filled(router, "target")


class RenameUnsharded(Change):
    """An unsharded collection over another one, which its mongod does in one step."""

    name = "renameCollection (unsharded)"
    places = (*coordinator_at("renameCollection", BEGIN), mongod_at(LOWER, "renameCollection"))
    done = frozenset({ErrorCode.NamespaceNotFound})

    def prepare(self, router: Client) -> None:
        self._fill(router, "other")
        self._fill(router, "target", 7)

    def request(self) -> tuple[str, Document]:
        return Rename(self.db).request()

    def check(self, router: Client) -> None:
        self._check_filled(router, "target")
        assert router[self.db].other.count_documents({}) == 0


class RenameToOtherDatabase(Change):
    """An unsharded collection renamed over one of another database; its mongod copies it there."""

    name = "renameCollection (other database)"
    places = (*coordinator_at("renameCollection", BEGIN), mongod_at(LOWER, "renameCollection"))
    done = frozenset({ErrorCode.NamespaceNotFound})

    @property
    def _other_db(self) -> str:
        return f"{self.db}_away"

    def prepare(self, router: Client) -> None:
        router.admin.command("enableSharding", self._other_db, primaryShard=LOWER)
        self._fill(router, "other")
        router[self.db].other.create_index("key")
        router[self._other_db].target.insert_many([{"_id": n} for n in range(7)])

    def request(self) -> tuple[str, Document]:
        target = f"{self._other_db}.target"
        return "admin", {"renameCollection": self._namespace("other"), "to": target, "dropTarget": True}

    def check(self, router: Client) -> None:
        target = router[self._other_db].target
        assert sorted(each["_id"] for each in target.find()) == list(range(10))
        assert "key_1" in target.index_information()
        assert router[self._other_db].list_collection_names() == ["target"], "no temporary collection is left"
        assert "other" not in router[self.db].list_collection_names()
        found = router[self._other_db].command("checkMetadataConsistency", 1, checkIndexes=True)
        assert found["cursor"]["firstBatch"] == []

    def undo(self, router: Client) -> None:
        router.drop_database(self._other_db)


class Refine(Change):
    """The key of the collection that clients write to."""

    name = "refineCollectionShardKey"
    places = (*coordinator_at("refineCollectionShardKey", *["RefineCollectionShardKey"] * 2, END), COMMIT)

    def prepare(self, router: Client) -> None:
        router[self.db][THINGS].create_index([("key", 1), ("_id", 1)])

    def request(self) -> tuple[str, Document]:
        return "admin", {"refineCollectionShardKey": self._namespace(), "key": {"key": 1, "_id": 1}}

    def check(self, router: Client) -> None:
        entry = catalog_entry(router, self._namespace())
        assert entry is not None
        assert list(entry["key"]) == ["key", "_id"]
        assert all(list(chunk["min"]) == ["key", "_id"] for chunk in chunks(router, self._namespace()))


class ForbidMigrations(Change):
    """A user's request."""

    name = "setAllowMigrations"
    places = coordinator_at("setAllowMigrations", BEGIN)

    def request(self) -> tuple[str, Document]:
        return "admin", {"setAllowMigrations": self._namespace(), "allowMigrations": False}

    def check(self, router: Client) -> None:
        entry = catalog_entry(router, self._namespace())
        assert entry is not None
        assert entry["permitMigrations"] is False

    def undo(self, router: Client) -> None:
        router.admin.command("setAllowMigrations", self._namespace(), allowMigrations=True)


class Create(Change):
    """An unsharded collection."""

    name = "create"
    places = (mongod_at(LOWER, "create"),)

    def request(self) -> tuple[str, Document]:
        return self.db, {"create": "created", "validationLevel": "moderate"}

    def check(self, router: Client) -> None:
        (entry,) = router[self.db].list_collections(filter={"name": "created"})
        assert entry["options"] == {"validationLevel": "moderate"}


class CreateIndexes(Change):
    """An index of a sharded collection."""

    name = "createIndexes"
    places = (
        *coordinator_at("createIndexes", BEGIN, "buildIndexes", END),
        *(mongod_at(LOWER, "createIndexes"), mongod_at(UPPER, "createIndexes")),
    )

    def request(self) -> tuple[str, Document]:
        return self.db, {"createIndexes": THINGS, "indexes": [{"key": {"times": 1}, "name": "times_1"}]}

    def check(self, router: Client) -> None:
        assert "times_1" in router[self.db][THINGS].index_information()


class CreateIndexesInVain(Change):
    """Two indexes of a sharded collection, one of which cannot be built on one shard."""

    name = "createIndexes (in vain)"
    places = coordinator_at("createIndexes", "buildIndexes", "dropBuiltIndexes", END)
    refused = frozenset({ErrorCode.DuplicateKey})

    def prepare(self, router: Client) -> None:
        shard_by_range(router[self.db], "other")
        router[self.db].other.insert_many([{"_id": n, "key": 900, "twice": 1} for n in range(2)])

    def request(self) -> tuple[str, Document]:
        unique = {"key": {"key": 1, "twice": 1}, "name": "unique", "unique": True}
        return self.db, {"createIndexes": "other", "indexes": [{"key": {"plain": 1}, "name": "plain"}, unique]}

    def check(self, router: Client) -> None:
        for shard in (LOWER, UPPER):
            indexes = router[self.db].other.aggregate([{"$indexStats": {}}, {"$match": {"shard": shard}}])
            assert {each["name"] for each in indexes} == {"_id_", "key_1"}


class DropIndexes(Change):
    """An index of a sharded collection."""

    name = "dropIndexes"
    places = (
        *coordinator_at("dropIndexes", BEGIN, "dropIndexes", END),
        *(mongod_at(LOWER, "dropIndexes"), mongod_at(UPPER, "dropIndexes")),
    )
    done = frozenset({ErrorCode.IndexNotFound})

    def prepare(self, router: Client) -> None:
        router[self.db][THINGS].create_index("times", name="times_1")

    def request(self) -> tuple[str, Document]:
        return self.db, {"dropIndexes": THINGS, "index": "times_1"}

    def check(self, router: Client) -> None:
        assert "times_1" not in router[self.db][THINGS].index_information()


class MovePrimary(Change):
    """A database with an unsharded collection and a view."""

    name = "movePrimary"
    places = coordinator_at("movePrimary", "clone", "clone", "clone", "commit", "clean", END)

    def prepare(self, router: Client) -> None:
        self._fill(router, "plain")
        router[self.db].plain.create_index("key")
        router[self.db].command("create", "view", viewOn="plain", pipeline=[{"$match": {"key": {"$lt": 300}}}])

    def request(self) -> tuple[str, Document]:
        return "admin", {"movePrimary": self.db, "to": UPPER}

    def check(self, router: Client) -> None:
        entry = router.config.databases.find_one({"_id": self.db})
        assert entry is not None
        assert entry["primary"] == UPPER
        self._check_filled(router, "plain")
        assert router[self.db].view.count_documents({}) == 3
        assert "key_1" in router[self.db].plain.index_information()


class Reshard(Change):
    """The collection that clients write to, by another key."""

    name = "reshardCollection"
    places = (
        *coordinator_at("reshardCollection", BEGIN, "reshard", END),
        *config_coordinator_at(
            "reshardCollection",
            *("initializing", "preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", END),
        ),
    )
    repeated = frozenset({ErrorCode.ReshardingCriticalSectionTimeout})

    def request(self) -> tuple[str, Document]:
        parts = [
            {"recipientShardId": UPPER, "min": {"_id": MinKey()}, "max": {"_id": "1/"}},
            {"recipientShardId": LOWER, "min": {"_id": "1/"}, "max": {"_id": MaxKey()}},
        ]
        options = {"key": {"_id": 1}, "_presetReshardedChunks": parts}
        return "admin", {"reshardCollection": self._namespace(), **options}

    def check(self, router: Client) -> None:
        entry = catalog_entry(router, self._namespace())
        assert entry is not None
        assert entry["key"] == {"_id": 1}
        assert placement(router, self._namespace()) == [UPPER, LOWER]
        assert list(router.config.reshardingOperations.find()) == []


CHANGES: Final[tuple[type[Change], ...]] = (
    *(ShardCollection, ShardNewCollection, ShardSeries, ShardNewSeries, DropSharded, DropUnsharded, DropDatabase),
    *(Modify, Granularity, Rename, RenameUnsharded, RenameToOtherDatabase, Refine, ForbidMigrations),
    *(Create, CreateIndexes, CreateIndexesInVain, DropIndexes, MovePrimary, Reshard),
)

STOPS: Final[dict[str, tuple[type[Change], Place]]] = {
    f"{change.name}: {place.name}": (change, place) for change in CHANGES for place in change.places
}
"""Every kind of change at every place, by the name of the test."""
