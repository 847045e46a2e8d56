"""One document of ``config.databases``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.sharding.document_fields import required
from shardwright.sharding.versions import DatabaseVersion


@dataclass(frozen=True, slots=True)
class DatabaseEntry:
    """A database and its primary shard, which holds its unsharded collections."""

    name: str
    primary: str
    version: DatabaseVersion

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "DatabaseEntry":
        """Read a decoded document.

        Raises:
            CommandError: NoSuchKey or TypeMismatch, it is not a database's entry.
        """
        return cls(
            required(document, "_id", str),
            required(document, "primary", str),
            DatabaseVersion.from_value(required(document, "version", Mapping)),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB 6.0 writes it, including ``partitioned``, a relic that is always false."""
        return {
            "_id": self.name,
            "primary": self.primary,
            "partitioned": False,
            "version": self.version.to_document(),
        }

    def moved_to(self, shard: str) -> "DatabaseEntry":
        """The entry after another shard has become primary."""
        return replace(self, primary=shard, version=self.version.with_last_mod_raised())
