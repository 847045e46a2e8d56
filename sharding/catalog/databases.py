"""``config.databases``: the primary shard of each database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharding.document_fields import required
from sharding.versions import DatabaseVersion


@dataclass(frozen=True, slots=True)
class DatabaseDocument:
    """One database. Its ``partitioned`` field is always written false and never read, as in MongoDB 6.0."""

    id: str
    primary: str
    version: DatabaseVersion

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "DatabaseDocument":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey, TypeMismatch, or what `DatabaseVersion.from_value` raises.
        """
        return cls(
            id=required(document, "_id", str),
            primary=required(document, "primary", str),
            version=DatabaseVersion.from_value(required(document, "version", object)),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
        return {"_id": self.id, "primary": self.primary, "partitioned": False, "version": self.version.to_document()}
