"""``config.changelog`` and ``config.actionlog``: changes of the cluster, with their times and origins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.sharding.document_fields import optional, required

CHANGELOG_BYTES_MAX: Final = 200 << 20
ACTIONLOG_BYTES_MAX: Final = 20 << 20
"""Maximum sizes of both collections, which are capped."""


@dataclass(frozen=True, slots=True)
class ChangeLogEntry:
    """One change.

    Args:
        id: ``host:port-time-ObjectId``, see `make_id`.
        shard: its shard, ``config`` on the config server.
        client_address: of the client that requested the change, empty for the server itself.
        time: in UTC without a time zone.
        what: kind of change, such as ``split`` or ``moveChunk.start``.
    """

    id: str
    server: str
    shard: str
    client_address: str
    time: datetime
    what: str
    namespace: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def make_id(server: str, time: datetime, unique: ObjectId) -> str:
        """Build the ``_id`` of an entry that ``server`` writes at a time given in UTC."""
        text = time.replace(tzinfo=UTC).isoformat(timespec="milliseconds")
        return f"{server}-{text}-{unique}"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ChangeLogEntry":
        """Read a document of the collection."""
        return cls(
            id=required(document, "_id", str),
            server=required(document, "server", str),
            shard=optional(document, "shard", str) or "",
            client_address=required(document, "clientAddr", str),
            time=required(document, "time", datetime),
            what=required(document, "what", str),
            namespace=optional(document, "ns", str) or "",
            details=required(document, "details", Mapping),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {
            "_id": self.id,
            "server": self.server,
            "shard": self.shard,
            "clientAddr": self.client_address,
            "time": self.time,
            "what": self.what,
            "ns": self.namespace,
            "details": dict(self.details),
        }
