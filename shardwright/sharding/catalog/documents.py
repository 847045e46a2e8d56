"""Documents of the catalog, with the indexes and options of its collections as seen on MongoDB 6.0.5.

The collections are ``collections``, ``databases``, ``shards``, ``version`` (the identity of the cluster), ``tags``
(ranges that belong to zones), and ``changelog`` and ``actionlog``: changes with their times and origins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.document_fields import naming, optional, required, required_uuid
from shardwright.sharding.initial_chunks import ZoneRange
from shardwright.sharding.key_statistics import HISTORY, HISTORY_BYTES_MAX, MINUTES, MINUTES_BYTES_MAX
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.rawbson import encode_document, spans

REFINING: Final = "chunksBeingRefined"
"""Field with the shorter key that bounds of chunks may still have, while the key is refined. An addition of ours."""

SHARD_AWARE: Final = 1
"""``state`` of a shard that has adopted its identity."""

MIN_COMPATIBLE_VERSION: Final = 5
CURRENT_VERSION: Final = 6

CHANGELOG_BYTES_MAX: Final = 200 << 20
ACTIONLOG_BYTES_MAX: Final = 20 << 20
"""Maximum sizes of both collections, which are capped."""


@dataclass(frozen=True, slots=True)
class TagEntry:
    """One range of one collection. ``id`` is a sub-document in clusters that began before MongoDB 5.0."""

    id: ObjectId | Mapping[str, Any]
    namespace: Namespace
    min: Mapping[str, Any]
    max: Mapping[str, Any]
    tag: str

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "TagEntry":
        """Read a document of the collection."""
        return cls(
            id=required(document, "_id", ObjectId, Mapping),
            namespace=Namespace.parse(required(document, "ns", str)),
            min=required(document, "min", Mapping),
            max=required(document, "max", Mapping),
            tag=required(document, "tag", str),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {
            "_id": self.id,
            "ns": str(self.namespace),
            "min": dict(self.min),
            "max": dict(self.max),
            "tag": self.tag,
        }

    def check_fits(self, proposed: ShardKeyPattern) -> None:
        """Raise InvalidOptions if the bounds do not have the fields of a proposed key, or no hash in a hashed one."""
        low, high = encode_document(self.min), encode_document(self.max)
        bounds, key = f"{document_text(low)} -->> {document_text(high)}", document_text(proposed.document)
        if not all(
            [name for name, _ in spans(bound)] == [each.name for each in proposed.fields] for bound in (low, high)
        ):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"the proposed shard key {key} does not match with the shard key of the existing zone {bounds}",
            )
        if not (proposed.has_hashes(low) and proposed.has_hashes(high)):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"cannot do hash sharding with the proposed key {key} because there exists a zone {bounds} whose"
                " boundaries are not of type NumberLong, MinKey or MaxKey",
            )

    def zone_range(self, pattern: ShardKeyPattern) -> ZoneRange:
        """Return the range with bounds that are full shard keys; raise BadValue if they are not prefixes of the key."""
        low, high = (pattern.extend_range_bound(encode_document(bound)) for bound in (self.min, self.max))
        return ZoneRange(low, high, self.tag)


@dataclass(frozen=True, slots=True)
class CollectionEntry:
    """A sharded collection, apart from its chunks.

    Attributes:
        epoch: together with ``timestamp``, identifies this incarnation of the collection.
        timestamp: cluster time of its creation, or of the last change that replaced all its versions.
        default_collation: a full collation, None for the simple one.
        permit_migrations: False while a user forbids migrations.
        allow_migrations: False while a DDL operation forbids migrations.
        defragmentation_phase: the present phase; None before it begins.
        max_chunk_size_bytes: the collection's own limit above which chunks are too large.
        time_series: bucketing parameters; None if it does not hold buckets.
        refined_from: while a shard key is being refined, the shorter key of bounds that are not extended yet.
    """

    namespace: Namespace
    uuid: UUID
    epoch: ObjectId
    timestamp: Timestamp
    lastmod: datetime
    key: ShardKeyPattern
    unique: bool = False
    default_collation: Mapping[str, Any] | None = None
    no_balance: bool = False
    no_auto_split: bool = False
    permit_migrations: bool = True
    allow_migrations: bool = True
    max_chunk_size_bytes: int | None = None
    is_defragmented: bool = False
    defragmentation_phase: str | None = None
    time_series: TimeSeriesFields | None = None
    refined_from: Mapping[str, Any] | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "CollectionEntry":
        """Read a decoded document; fields of features that do not affect placement are ignored.

        Raises BadValue for an invalid shard key.
        """
        return cls(
            namespace=Namespace.parse(required(document, "_id", str)),
            uuid=required_uuid(document, "uuid"),
            epoch=required(document, "lastmodEpoch", ObjectId),
            timestamp=required(document, "timestamp", Timestamp),
            lastmod=required(document, "lastmod", datetime),
            key=ShardKeyPattern.from_bson(rawbson.encode_document(required(document, "key", Mapping))),
            unique=bool(document.get("unique", False)),
            default_collation=optional(document, "defaultCollation", Mapping) or None,
            no_balance=bool(document.get("noBalance", False)),
            no_auto_split=bool(document.get("noAutoSplit", False)),
            permit_migrations=bool(document.get("permitMigrations", True)),
            allow_migrations=bool(document.get("allowMigrations", True)),
            max_chunk_size_bytes=optional(document, "maxChunkSizeBytes", int),
            is_defragmented=bool(document.get("defragmentCollection", False)),
            defragmentation_phase=optional(document, "defragmentationPhase", str),
            time_series=TimeSeriesFields.of_entry(document),
            refined_from=optional(document, REFINING, Mapping),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB 6.0 writes it when a collection is sharded."""
        document: dict[str, Any] = {
            "_id": str(self.namespace),
            "lastmodEpoch": self.epoch,
            "lastmod": self.lastmod,
            "timestamp": self.timestamp,
            "uuid": Binary.from_uuid(self.uuid),
            "key": rawbson.raw_document(self.key.document),
        }
        if self.default_collation is not None:
            document["defaultCollation"] = dict(self.default_collation)
        document["unique"] = self.unique
        document["chunksAlreadySplitForDowngrade"] = False
        document["noBalance"] = self.no_balance
        if not self.permit_migrations:
            document["permitMigrations"] = False
        if not self.allow_migrations:
            document["allowMigrations"] = False
        if self.no_auto_split:
            document["noAutoSplit"] = True
        if self.max_chunk_size_bytes is not None:
            document["maxChunkSizeBytes"] = self.max_chunk_size_bytes
        if self.is_defragmented:
            document["defragmentCollection"] = True
        if self.defragmentation_phase is not None:
            document["defragmentationPhase"] = self.defragmentation_phase
        if self.time_series is not None:
            document["timeseriesFields"] = self.time_series.to_document()
        if self.refined_from is not None:
            document[REFINING] = self.refined_from
        return document

    @property
    def may_migrate(self) -> bool:
        """Whether chunks may move: neither a user nor a DDL operation in progress forbids it."""
        return self.permit_migrations and self.allow_migrations

    def sharded_collection(self) -> ShardedCollection:
        """Return the routing fields."""
        return ShardedCollection(
            self.namespace,
            self.uuid,
            self.epoch,
            self.timestamp,
            self.key,
            self.unique,
            self.default_collation,
            self.may_migrate,
            self.max_chunk_size_bytes,
            self.time_series,
        )


@dataclass(frozen=True, slots=True)
class DatabaseEntry:
    """A database and its primary shard, which holds its unsharded collections.

    ``moved_at`` is when the last ``movePrimary`` to the primary shard was complete; None if the database was created
    there. An addition of ours.
    """

    name: str
    primary: str
    version: DatabaseVersion
    moved_at: Timestamp | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "DatabaseEntry":
        """Read a decoded document."""
        return cls(
            required(document, "_id", str),
            required(document, "primary", str),
            DatabaseVersion.from_value(required(document, "version", Mapping)),
            optional(document, "movedAt", Timestamp),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB 6.0 writes it, including ``partitioned``, a relic that is always false."""
        document: dict[str, Any] = {
            "_id": self.name,
            "primary": self.primary,
            "partitioned": False,
            "version": self.version.to_document(),
        }
        return document if self.moved_at is None else {**document, "movedAt": self.moved_at}

    def moved_to(self, shard: str, moved_at: Timestamp | None) -> "DatabaseEntry":
        """Return the entry after another shard has become primary."""
        return replace(self, primary=shard, version=self.version.with_last_mod_raised(), moved_at=moved_at)


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard and its address.

    Attributes:
        host: connection string of its replica set, ``set/host:port,host:port``.
        topology_time: cluster time at which this shard was added, or at which another one was removed; None in entries
            written by versions without topology time.
        max_size: MB, an old limit that is kept but has no effect.
    """

    id: str
    host: str
    topology_time: Timestamp | None = None
    is_draining: bool = False
    tags: tuple[str, ...] = ()
    max_size: int | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ShardEntry":
        """Read a decoded document."""
        return cls(
            required(document, "_id", str),
            required(document, "host", str),
            optional(document, "topologyTime", Timestamp),
            bool(document.get("draining")),
            tuple(optional(document, "tags", list) or ()),
            optional(document, "maxSize", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB 6.0 writes it when a shard is added."""
        document: dict[str, Any] = {"_id": self.id, "host": self.host}
        if self.max_size is not None:
            document["maxSize"] = self.max_size
        document["state"] = SHARD_AWARE
        if self.topology_time is not None:
            document["topologyTime"] = self.topology_time
        if self.is_draining:
            document["draining"] = True
        if self.tags:
            document["tags"] = list(self.tags)
        return document

    @property
    def connection_string(self) -> ConnectionString:
        """Its replica set and the members in ``host``.

        Raises FailedToParse. As in MongoDB, such an entry can be read, so that it can be removed.
        """
        return ConnectionString.parse(self.host)


def topology_time(shards: Iterable[ShardEntry]) -> int:
    """Return when a shard was last added or removed, given all shards; packed, see `pack_timestamp`, and 0 if unknown.

    The removal of a shard writes its time into the entry of another one, so the latest time counts.
    """
    return max((pack_timestamp(each.topology_time) for each in shards if each.topology_time is not None), default=0)


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """The one document of the collection."""

    cluster_id: ObjectId

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VersionEntry":
        """Read the document; raise IncompatibleShardingConfigVersion for a catalog of another schema."""
        with naming("config.version"):
            version: int = required(document, "currentVersion", int)
            cluster_id: ObjectId = required(document, "clusterId", ObjectId)
        if version != CURRENT_VERSION:
            raise CommandError(
                ErrorCode.IncompatibleShardingConfigVersion, f"The catalog has version {version}, not {CURRENT_VERSION}"
            )
        return cls(cluster_id)

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {
            "_id": 1,
            "minCompatibleVersion": MIN_COMPATIBLE_VERSION,
            "currentVersion": CURRENT_VERSION,
            "clusterId": self.cluster_id,
        }


@dataclass(frozen=True, slots=True)
class ChangeLogEntry:
    """One change.

    Args:
        id: ``host:port-time-ObjectId``, see `make_id`.
        shard: its shard, ``config`` on the config server.
        client_address: of the client that requested the change, empty for the server itself.
        time: in UTC without a time zone.
        what: kind of change, such as ``split`` or ``moveChunk.start``.
    """

    id: str
    server: str
    shard: str
    client_address: str
    time: datetime
    what: str
    namespace: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def make_id(server: str, time: datetime, unique: ObjectId) -> str:
        """Build the ``_id`` of an entry that ``server`` writes at a time given in UTC."""
        text = time.replace(tzinfo=UTC).isoformat(timespec="milliseconds")
        return f"{server}-{text}-{unique}"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ChangeLogEntry":
        """Read a document of the collection."""
        return cls(
            id=required(document, "_id", str),
            server=required(document, "server", str),
            shard=optional(document, "shard", str) or "",
            client_address=required(document, "clientAddr", str),
            time=required(document, "time", datetime),
            what=required(document, "what", str),
            namespace=optional(document, "ns", str) or "",
            details=required(document, "details", Mapping),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {
            "_id": self.id,
            "server": self.server,
            "shard": self.shard,
            "clientAddr": self.client_address,
            "time": self.time,
            "what": self.what,
            "ns": self.namespace,
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index; named by its key unless MongoDB named it otherwise."""

    key: Mapping[str, int]
    unique: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_specification(self) -> dict[str, Any]:
        """Build the specification for ``createIndexes``."""
        name = "_".join(f"{path}_{direction}" for path, direction in self.key.items())
        specification: dict[str, Any] = {"key": dict(self.key), "name": name}
        if self.unique:
            specification["unique"] = True
        return specification | dict(self.options)


INDEXES: Final[Mapping[str, tuple[IndexDefinition, ...]]] = {
    "shards": (IndexDefinition({"host": 1}, unique=True),),
    "chunks": (
        IndexDefinition({"uuid": 1, "min": 1}, unique=True),
        IndexDefinition({"uuid": 1, "shard": 1, "min": 1}, unique=True),
        IndexDefinition({"uuid": 1, "lastmod": 1}, unique=True),
    ),
    "tags": (IndexDefinition({"ns": 1, "min": 1}, unique=True), IndexDefinition({"ns": 1, "tag": 1})),
    "migrations": (IndexDefinition({"ns": 1, "min": 1}, unique=True),),
    "locks": (IndexDefinition({"ts": 1}), IndexDefinition({"state": 1, "process": 1})),
    "lockpings": (IndexDefinition({"ping": 1}),),
    "reshardingOperations": (
        IndexDefinition({"active": 1}, unique=True, options={"name": "ReshardingCoordinatorActiveIndex"}),
    ),
    MINUTES: (IndexDefinition({"at": 1}),),
    HISTORY: (IndexDefinition({"at": 1}),),
    "system.sessions": (IndexDefinition({"lastUse": 1}, options={"name": "lsidTTLIndex", "expireAfterSeconds": 1800}),),
}
"""Indexes of the config server's collections, by name within the database ``config``.

Key statistics are an addition of ours.
"""

CAPPED_BYTES: Final[Mapping[str, int]] = {
    "changelog": CHANGELOG_BYTES_MAX,
    "actionlog": ACTIONLOG_BYTES_MAX,
    MINUTES: MINUTES_BYTES_MAX,
    HISTORY: HISTORY_BYTES_MAX,
}
"""Capped collections of the config server, with their sizes."""

CACHE_CHUNKS_INDEXES: Final = (IndexDefinition({"lastmod": 1}),)
"""Indexes of every ``config.cache.chunks.<ns>`` on a shard."""

RANGE_DELETIONS_INDEXES: Final = (IndexDefinition({"collectionUuid": 1, "range.min": 1, "range.max": 1}),)
"""Indexes of ``config.rangeDeletions`` on a shard."""
