"""``config.tags``: ranges of shard key values that belong to zones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.objectid import ObjectId

from shardwright.sharding.document_fields import required
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.presplit_zones import ZoneRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document


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
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(
            id=required(document, "_id", ObjectId, Mapping),
            namespace=Namespace.parse(required(document, "ns", str)),
            min=required(document, "min", Mapping),
            max=required(document, "max", Mapping),
            tag=required(document, "tag", str),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
        return {
            "_id": self.id,
            "ns": str(self.namespace),
            "min": dict(self.min),
            "max": dict(self.max),
            "tag": self.tag,
        }

    def zone_range(self, pattern: ShardKeyPattern) -> ZoneRange:
        """The range with bounds that are full shard keys.

        Raises:
            CommandError: BadValue, the bounds are not prefixes of the shard key.
        """
        low, high = (pattern.extend_range_bound(encode_document(bound)) for bound in (self.min, self.max))
        return ZoneRange(low, high, self.tag)
