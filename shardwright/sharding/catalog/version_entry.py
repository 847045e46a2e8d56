"""``config.version``: the identity of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.sharding.document_fields import required
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

MIN_COMPATIBLE_VERSION: Final = 5
CURRENT_VERSION: Final = 6


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """The one document of the collection."""

    cluster_id: ObjectId

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VersionEntry":
        """Read the document; raise IncompatibleShardingConfigVersion for a catalog of another schema."""
        if required(document, "currentVersion", int) != CURRENT_VERSION:
            raise CommandError(
                ErrorCode.IncompatibleShardingConfigVersion,
                f"The catalog has version {document['currentVersion']}, not {CURRENT_VERSION}",
            )
        return cls(required(document, "clusterId", ObjectId))

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {
            "_id": 1,
            "minCompatibleVersion": MIN_COMPATIBLE_VERSION,
            "currentVersion": CURRENT_VERSION,
            "clusterId": self.cluster_id,
        }
