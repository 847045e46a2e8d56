"""One document of ``config.collections``."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire import rawbson

REFINING: Final = "chunksBeingRefined"
"""Field with the shorter key that bounds of chunks may still have, while the key is refined. An addition of ours."""


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
