"""``config.tags``: ranges of shard key values that belong to zones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.objectid import ObjectId

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import required
from shardwright.sharding.initial_chunks import ZoneRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, spans


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
