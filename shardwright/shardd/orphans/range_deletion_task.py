"""``config.rangeDeletions``: ranges whose documents are, or may become, orphans, in MongoDB 6.0's schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.wire.rawbson import encode_document, raw_document

RANGE_DELETIONS: Final = "rangeDeletions"

CLEAN_NOW: Final = "now"
CLEAN_DELAYED: Final = "delayed"
"""When a range is deleted: as soon as no older operation can read it, or ``orphanCleanupDelaySecs`` later."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The bounds of a range of shard keys, as raw documents; the lower one is inclusive."""

    min: bytes
    max: bytes

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "KeyRange":
        """Read ``{min, max}``.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(*(encode_document(required(document, bound, Mapping)) for bound in ("min", "max")))

    def to_document(self) -> dict[str, Any]:
        """``{min, max}``."""
        return {"min": raw_document(self.min), "max": raw_document(self.max)}

    def __str__(self) -> str:
        return f"[{document_text(self.min)}, {document_text(self.max)})"


@dataclass(frozen=True, slots=True)
class RangeDeletionTask:
    """A document of ``config.rangeDeletions``, on donor or recipient.

    Attributes:
        id: the migration's UUID.
        namespace: the collection.
        collection_uuid: its UUID.
        donor: id of the donor.
        range: the range that moves.
        pending: whether the outcome of the migration is still open.
        when: `CLEAN_NOW` or `CLEAN_DELAYED`.
        timestamp: when the task was registered or became ready.
        orphans: number of documents to delete, as far as known.
    """

    id: UUID
    namespace: str
    collection_uuid: UUID
    donor: str
    range: KeyRange
    pending: bool
    when: str
    timestamp: Timestamp | None = None
    orphans: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "RangeDeletionTask":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(
            id=required_uuid(document, "_id"),
            namespace=required(document, "nss", str),
            collection_uuid=required_uuid(document, "collectionUuid"),
            donor=required(document, "donorShardId", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            pending=bool(optional(document, "pending", bool)),
            when=required(document, "whenToClean", str),
            timestamp=optional(document, "timestamp", Timestamp),
            orphans=optional(document, "numOrphanDocs", int) or 0,
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB 6.0 writes it."""
        document: dict[str, Any] = {
            "_id": Binary.from_uuid(self.id),
            "nss": self.namespace,
            "collectionUuid": Binary.from_uuid(self.collection_uuid),
            "donorShardId": self.donor,
            "range": self.range.to_document(),
        }
        if self.pending:
            document["pending"] = True
        document["whenToClean"] = self.when
        if self.timestamp is not None:
            document["timestamp"] = self.timestamp
        document["numOrphanDocs"] = Int64(self.orphans)
        return document
