"""How far a recipient has come with one donor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.wire.rawbson import encode_document, raw_document


@dataclass(frozen=True, slots=True)
class PullProgress:
    """What has been written of one donor.

    Attributes:
        donor: the donor.
        position: all changes up to this time have been written; None before the clone has begun.
        from_key: the present shard key, a raw document, up to which documents are cloned; None at the beginning.
        is_cloned: whether the clone is complete.
        documents: number of documents cloned.
        bytes: their size.
        changes: number of changes applied.
    """

    donor: str
    position: Timestamp | None = None
    from_key: bytes | None = None
    is_cloned: bool = False
    documents: int = 0
    bytes: int = 0
    changes: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "PullProgress":
        """Read the persisted form."""
        key = document.get("fromKey")
        return cls(
            donor=document["_id"]["shardId"],
            position=document.get("position"),
            from_key=None if key is None else encode_document(key),
            is_cloned=bool(document["isCloned"]),
            documents=int(document["documentsCopied"]),
            bytes=int(document["bytesCopied"]),
            changes=int(document["oplogEntriesApplied"]),
        )

    def to_document(self, operation_id: UUID) -> dict[str, Any]:
        """The persisted form."""
        document: dict[str, Any] = {
            "_id": {"reshardingUUID": Binary.from_uuid(operation_id), "shardId": self.donor},
            "isCloned": self.is_cloned,
            "documentsCopied": Int64(self.documents),
            "bytesCopied": Int64(self.bytes),
            "oplogEntriesApplied": Int64(self.changes),
        }
        if self.position is not None:
            document["position"] = self.position
        if self.from_key is not None:
            document["fromKey"] = raw_document(self.from_key)
        return document
