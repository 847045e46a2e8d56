"""A resharding operation as donors and recipients receive it, and the documents that each of them handles.

Chunks do not move while a collection is resharded, so donor and recipient follow from the document alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document, raw_document

_TEMPORARY_PREFIX: Final = "system.resharding."
_STASH_PREFIX: Final = "localReshardingConflictStash."


def temporary_namespace(namespace: Namespace, source_uuid: UUID) -> Namespace:
    """Return the collection in which recipients assemble their documents; the commit renames it to ``namespace``.

    ``source_uuid`` is the UUID of ``namespace`` before.
    """
    return Namespace(namespace.db, f"{_TEMPORARY_PREFIX}{source_uuid}")


def is_temporary(namespace: Namespace) -> bool:
    """Whether a namespace is such a temporary collection."""
    return namespace.collection.startswith(_TEMPORARY_PREFIX)


def stash_namespace(source_uuid: UUID, donor: str) -> Namespace:
    """Return a recipient's conflict stash for one donor; ``source_uuid`` is the UUID of the collection before."""
    return Namespace("config", f"{_STASH_PREFIX}{source_uuid}.{donor}")


class Ownership:
    """The owners of documents by the routing tables of the present and of the new shard key.

    An array in a shard key raises ShardKeyNotFound.
    """

    def __init__(self, source: RoutingTable, target: RoutingTable) -> None:
        self._source = source
        self._target = target

    def donor_of(self, document: bytes) -> str:
        """Return the shard that owns a document now; a copy on any other shard is an orphan."""
        return self._source.shard_for_key(self._source.key_pattern.key_bytes_of_document(document))

    def recipient_of(self, document: bytes) -> str:
        """Return the shard that will own a document."""
        return self._target.shard_for_key(self._target.key_pattern.key_bytes_of_document(document))

    def source_key_of(self, document: bytes) -> bytes:
        """Return the present shard key of a document, as a raw document."""
        return self._source.key_pattern.extract_from_document(document)

    def handed_over(self, documents: Sequence[bytes], donor: str, recipient: str) -> list[bytes]:
        """Select the documents that ``donor`` owns now and ``recipient`` will own."""
        owned: Iterable[bytes] = documents
        if self._source.shards != {donor}:  # otherwise there are no orphans, whatever the keys
            owned = (each for each in documents if self.donor_of(each) == donor)
        key_of, shard_for_key = self._target.key_pattern.key_bytes_of_document, self._target.shard_for_key
        return [each for each in owned if shard_for_key(key_of(each)) == recipient]


@dataclass(frozen=True, slots=True)
class Participation:
    """One resharding operation, in the form that all its participants have.

    Attributes:
        id: the operation, whose id becomes the UUID of the collection.
        source_uuid: the collection's UUID until the commit.
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
        """Collection in which recipients assemble their documents."""
        return temporary_namespace(self.namespace, self.source_uuid)

    @property
    def shards(self) -> list[str]:
        """All participants, each once."""
        return sorted({*self.donors, *self.recipients})

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Participation":
        """Read the document in which it is sent and persisted; other fields are ignored.

        Raises NoSuchKey, TypeMismatch or BadValue.
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
        """Build the document in which it is sent and persisted, with MongoDB's names."""
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
