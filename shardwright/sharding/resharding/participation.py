"""What a donor or a recipient is told about a resharding operation, and persists."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding.names import temporary_namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document, raw_document


@dataclass(frozen=True, slots=True)
class Participation:
    """One resharding operation, as all its participants know it.

    Attributes:
        id: the operation, whose id becomes the UUID of the collection.
        namespace: the collection.
        source_uuid: its UUID until the commit.
        key: the new shard key.
        donors: ids of the shards that own chunks by the present shard key.
        recipients: ids of the shards that will own chunks, and of the database's primary shard.
    """

    id: UUID
    namespace: Namespace
    source_uuid: UUID
    key: ShardKeyPattern
    donors: tuple[str, ...]
    recipients: tuple[str, ...]

    @property
    def temporary(self) -> Namespace:
        """The collection in which recipients assemble their documents."""
        return temporary_namespace(self.namespace, self.source_uuid)

    @property
    def shards(self) -> list[str]:
        """All participants, each once."""
        return sorted({*self.donors, *self.recipients})

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Participation":
        """Read the form in which it is sent and persisted; other fields are ignored.

        Raises:
            CommandError: NoSuchKey, TypeMismatch or BadValue.
        """
        return cls(
            id=required_uuid(document, "_id"),
            namespace=Namespace.parse(required(document, "ns", str)),
            source_uuid=required_uuid(document, "ui"),
            key=ShardKeyPattern.from_bson(encode_document(required(document, "reshardingKey", Mapping))),
            donors=_shard_ids(document, "donorShards"),
            recipients=_shard_ids(document, "recipientShards"),
        )

    def to_document(self) -> dict[str, Any]:
        """The form in which it is sent and persisted, with MongoDB's names."""
        return {
            "_id": Binary.from_uuid(self.id),
            "ns": str(self.namespace),
            "ui": Binary.from_uuid(self.source_uuid),
            "tempNs": str(self.temporary),
            "reshardingKey": raw_document(self.key.document),
            "donorShards": [{"shardId": each} for each in self.donors],
            "recipientShards": [{"shardId": each} for each in self.recipients],
        }


def _shard_ids(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(required(entry, "shardId", str) for entry in required(document, name, list))
