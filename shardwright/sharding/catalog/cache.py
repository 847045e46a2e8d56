"""``config.cache.*`` of a shard: its primary's copy of the catalog, persisted for its secondaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire import rawbson
from shardwright.wire.rawbson import decode_document

CACHE_DATABASES: Final = Namespace("config", "cache.databases")
CACHE_COLLECTIONS: Final = Namespace("config", "cache.collections")


def cache_chunks_namespace(namespace: Namespace) -> Namespace:
    """Return the collection in which the chunks of ``namespace`` are cached."""
    return Namespace("config", f"cache.chunks.{namespace}")


@dataclass(frozen=True, slots=True)
class CachedDatabase:
    """A document of ``config.cache.databases``.

    ``enter_critical_section_counter`` rises when a critical section begins, which makes secondaries refresh.
    ``moved_at`` is an addition of ours, as in `DatabaseEntry`.
    """

    id: str
    primary: str
    version: DatabaseVersion
    enter_critical_section_counter: int | None = None
    moved_at: Timestamp | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "CachedDatabase":
        """Read a document of the collection."""
        return cls(
            id=required(document, "_id", str),
            primary=required(document, "primary", str),
            version=DatabaseVersion.from_value(required(document, "version", Mapping)),
            enter_critical_section_counter=optional(document, "enterCriticalSectionCounter", int),
            moved_at=optional(document, "movedAt", Timestamp),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        document: dict[str, Any] = {
            "_id": self.id,
            "partitioned": False,
            "primary": self.primary,
            "version": self.version.to_document(),
        }
        if self.enter_critical_section_counter is not None:
            document["enterCriticalSectionCounter"] = self.enter_critical_section_counter
        if self.moved_at is not None:
            document["movedAt"] = self.moved_at
        return document


@dataclass(frozen=True, slots=True)
class CachedCollection:
    """A document of ``config.cache.collections``. Attributes not listed here are as in the catalog.

    Args:
        refreshing: true while the cached chunks are being written, and must not be read.
        last_refreshed_version: the collection version of the cached chunks; None before the first refresh.
        enter_critical_section_counter: rises when a critical section begins.
    """

    namespace: Namespace
    epoch: ObjectId
    timestamp: Timestamp
    uuid: UUID
    key: Mapping[str, Any]
    unique: bool
    default_collation: Mapping[str, Any] | None = None
    refreshing: bool | None = None
    last_refreshed_version: Timestamp | None = None
    enter_critical_section_counter: int | None = None
    max_chunk_size_bytes: int | None = None
    allow_migrations: bool = True
    time_series: TimeSeriesFields | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "CachedCollection":
        """Read a document of the collection."""
        return cls(
            namespace=Namespace.parse(required(document, "_id", str)),
            epoch=required(document, "epoch", ObjectId),
            timestamp=required(document, "timestamp", Timestamp),
            uuid=required_uuid(document, "uuid"),
            key=required(document, "key", Mapping),
            unique=required(document, "unique", bool),
            default_collation=optional(document, "defaultCollation", Mapping),
            refreshing=optional(document, "refreshing", bool),
            last_refreshed_version=optional(document, "lastRefreshedCollectionVersion", Timestamp),
            enter_critical_section_counter=optional(document, "enterCriticalSectionCounter", int),
            max_chunk_size_bytes=optional(document, "maxChunkSizeBytes", int),
            allow_migrations=optional(document, "allowMigrations", bool) is not False,
            time_series=TimeSeriesFields.of_entry(document),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        document: dict[str, Any] = {
            "_id": str(self.namespace),
            "epoch": self.epoch,
            "timestamp": self.timestamp,
            "uuid": Binary.from_uuid(self.uuid),
            "key": dict(self.key),
        }
        if self.default_collation is not None:
            document["defaultCollation"] = dict(self.default_collation)
        document["unique"] = self.unique
        if self.refreshing is not None:
            document["refreshing"] = self.refreshing
        document["allowAutoSplit"] = True
        if self.time_series is not None:
            document["timeseriesFields"] = self.time_series.to_document()
        if self.last_refreshed_version is not None:
            document["lastRefreshedCollectionVersion"] = self.last_refreshed_version
        if self.enter_critical_section_counter is not None:
            document["enterCriticalSectionCounter"] = self.enter_critical_section_counter
        if self.max_chunk_size_bytes is not None:
            document["maxChunkSizeBytes"] = self.max_chunk_size_bytes
        if not self.allow_migrations:
            document["allowMigrations"] = False
        return document

    @classmethod
    def from_collection(cls, collection: ShardedCollection, *, refreshing: bool) -> "CachedCollection":
        """Build the cached document of a collection, before its chunks have been written."""
        return cls(
            namespace=collection.namespace,
            epoch=collection.epoch,
            timestamp=collection.timestamp,
            uuid=collection.uuid,
            key=decode_document(collection.key_pattern.document),
            unique=collection.unique,
            default_collation=collection.default_collation,
            refreshing=refreshing,
            max_chunk_size_bytes=collection.max_chunk_size_bytes,
            allow_migrations=collection.allow_migrations,
            time_series=collection.time_series,
        )

    def for_routing(self) -> ShardedCollection:
        """Return the routing fields; raise BadValue if the key is not a shard key pattern."""
        return ShardedCollection(
            namespace=self.namespace,
            uuid=self.uuid,
            epoch=self.epoch,
            timestamp=self.timestamp,
            key_pattern=ShardKeyPattern.from_mapping(self.key),
            unique=self.unique,
            default_collation=self.default_collation,
            allow_migrations=self.allow_migrations,
            max_chunk_size_bytes=self.max_chunk_size_bytes,
            time_series=self.time_series,
        )


def cached_placement_document(placement: ChunkPlacement) -> dict[str, Any]:
    """Build the document of ``config.cache.chunks.<ns>`` for a chunk; its lower bound is the ``_id``."""
    return {
        "_id": rawbson.raw_document(placement.min),
        "max": rawbson.raw_document(placement.max),
        "shard": placement.shard,
        "lastmod": unpack_timestamp(placement.version),
        "history": [
            {"validAfter": unpack_timestamp(valid_after), "shard": shard} for valid_after, shard in placement.history
        ],
    }
