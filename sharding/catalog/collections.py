"""``config.collections``: the sharded collections."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import bson
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from sharding.document_fields import optional, required, required_uuid
from sharding.namespace import Namespace
from sharding.routing_table import ShardedCollection
from sharding.shard_key import ShardKeyPattern

# Fields that other parts of MongoDB put there; they are kept as they are.
_CARRIED_FIELDS = (
    "reshardingFields",
    "timeseriesFields",
    "defragmentCollection",
    "defragmentationPhase",
    "noAutoSplit",
)


@dataclass(frozen=True, slots=True)
class CollectionDocument:
    """One sharded collection.

    Args:
        namespace: its ``_id``.
        epoch: identity of this incarnation, new on create, rename and change of the key.
        updated: a date of old that MongoDB still writes.
        timestamp: likewise identity, the one that versions are compared by.
        uuid: of the collection on all shards.
        key: the shard key pattern.
        unique: whether the shard key is unique.
        default_collation: of the collection, when it is not simple.
        balancing: false when the user turned it off for this collection (``noBalance``).
        permit_migrations: what the user set with ``setAllowMigrations``.
        allow_migrations: false while an operation on the collection needs its chunks to stay.
        max_chunk_size_bytes: when set for this collection.
        carried: fields kept as they are.
    """

    namespace: Namespace
    epoch: ObjectId
    updated: datetime
    timestamp: Timestamp
    uuid: UUID
    key: Mapping[str, Any]
    unique: bool = False
    default_collation: Mapping[str, Any] | None = None
    balancing: bool = True
    permit_migrations: bool = True
    allow_migrations: bool = True
    max_chunk_size_bytes: int | None = None
    carried: Mapping[str, Any] | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "CollectionDocument":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(
            namespace=Namespace.parse(required(document, "_id", str)),
            epoch=required(document, "lastmodEpoch", ObjectId),
            updated=required(document, "lastmod", datetime),
            timestamp=required(document, "timestamp", Timestamp),
            uuid=required_uuid(document, "uuid"),
            key=_mapping(document, "key") or {},
            unique=optional(document, "unique", bool) or False,
            default_collation=_mapping(document, "defaultCollation"),
            balancing=not optional(document, "noBalance", bool),
            permit_migrations=optional(document, "permitMigrations", bool) is not False,
            allow_migrations=optional(document, "allowMigrations", bool) is not False,
            max_chunk_size_bytes=optional(document, "maxChunkSizeBytes", int),
            carried={name: document[name] for name in _CARRIED_FIELDS if name in document} or None,
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it: fields of the last lines only when they say something."""
        document: dict[str, Any] = {
            "_id": str(self.namespace),
            "lastmodEpoch": self.epoch,
            "lastmod": self.updated,
            "timestamp": self.timestamp,
            "uuid": Binary.from_uuid(self.uuid),
            "key": dict(self.key),
        }
        if self.default_collation is not None:
            document["defaultCollation"] = dict(self.default_collation)
        document |= {"unique": self.unique, "chunksAlreadySplitForDowngrade": False, "noBalance": not self.balancing}
        if self.max_chunk_size_bytes is not None:
            document["maxChunkSizeBytes"] = Int64(self.max_chunk_size_bytes)
        document |= self.carried or {}
        if not self.permit_migrations:
            document["permitMigrations"] = False
        if not self.allow_migrations:
            document["allowMigrations"] = False
        return document

    @property
    def migrations_allowed(self) -> bool:
        """Whether neither the user nor an operation keeps the chunks where they are."""
        return self.permit_migrations and self.allow_migrations

    def for_routing(self) -> ShardedCollection:
        """What routing needs of it.

        Raises:
            CommandError: BadValue, the key is no shard key pattern.
        """
        return ShardedCollection(
            namespace=self.namespace,
            uuid=self.uuid,
            epoch=self.epoch,
            timestamp=self.timestamp,
            key_pattern=ShardKeyPattern.from_bson(bson.encode(self.key)),
            unique=self.unique,
            default_collation=self.default_collation,
            allow_migrations=self.migrations_allowed,
            max_chunk_size_bytes=self.max_chunk_size_bytes,
        )


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    # Through object, since an abstract class is no type[T] to the type checker.
    value = optional(document, name, object)
    if value is not None and not isinstance(value, Mapping):
        optional(document, name, dict)
    return value if isinstance(value, Mapping) else None
