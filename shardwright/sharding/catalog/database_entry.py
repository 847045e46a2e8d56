"""One document of ``config.databases``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson.timestamp import Timestamp

from shardwright.sharding.document_fields import optional, required
from shardwright.sharding.versions import DatabaseVersion


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
