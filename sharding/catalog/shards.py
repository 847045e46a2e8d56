"""``config.shards``: the shards of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp

from sharding.document_fields import optional, required

SHARD_AWARE = 1


@dataclass(frozen=True, slots=True)
class ShardDocument:
    """One shard.

    Args:
        id: the shard's name.
        host: connection string, ``set/host:port,…``.
        topology_time: cluster time at which shards were last added or removed, as far as written to this document.
        state: 1 once the shard knows that it is one.
        draining: whether the shard is being removed.
        zones: the zones it belongs to; None when it never was in any, which the document tells apart from none left.
        max_size_mb: an old limit on stored data.
    """

    id: str
    host: str
    topology_time: Timestamp | None = None
    state: int = SHARD_AWARE
    draining: bool = False
    zones: tuple[str, ...] | None = None
    max_size_mb: int | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ShardDocument":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        zones = optional(document, "tags", list)
        return cls(
            id=required(document, "_id", str),
            host=required(document, "host", str),
            topology_time=optional(document, "topologyTime", Timestamp),
            state=optional(document, "state", int) or 0,
            draining=optional(document, "draining", bool) or False,
            zones=None if zones is None else tuple(zones),
            max_size_mb=optional(document, "maxSize", int),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
        document: dict[str, Any] = {"_id": self.id, "host": self.host}
        if self.draining:
            document["draining"] = True
        if self.max_size_mb is not None:
            document["maxSize"] = Int64(self.max_size_mb)
        document["state"] = self.state
        if self.topology_time is not None:
            document["topologyTime"] = self.topology_time
        if self.zones is not None:
            document["tags"] = list(self.zones)
        return document
