"""``config.mongos``: the routers, each of which renews its document every ten seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.int64 import Int64

from shardwright.sharding.document_fields import optional, required

PING_INTERVAL_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class MongosEntry:
    """One router.

    Args:
        id: ``host:port``.
        ping: when it was last seen, in UTC without a time zone.
        up_seconds: how long it has been running.
        version: the version of MongoDB that it emulates.
        waiting: true between two pings, a relic of the time when routers balanced.
        advisory_host_fqdns: names of its host, for information only.
        created: when it was first seen.
    """

    id: str
    ping: datetime
    up_seconds: int
    version: str
    waiting: bool = True
    advisory_host_fqdns: tuple[str, ...] = ()
    created: datetime | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MongosEntry":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(
            id=required(document, "_id", str),
            ping=required(document, "ping", datetime),
            up_seconds=required(document, "up", int),
            version=optional(document, "mongoVersion", str) or "",
            waiting=required(document, "waiting", bool),
            advisory_host_fqdns=tuple(optional(document, "advisoryHostFQDNs", list) or ()),
            created=optional(document, "created", datetime),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
        document: dict[str, Any] = {"_id": self.id, "advisoryHostFQDNs": list(self.advisory_host_fqdns)}
        if self.created is not None:
            document["created"] = self.created
        document |= {
            "mongoVersion": self.version,
            "ping": self.ping,
            "up": Int64(self.up_seconds),
            "waiting": self.waiting,
        }
        return document
