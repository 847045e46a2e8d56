"""One document of ``config.shards``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.sharding.document_fields import optional, required
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.host_and_port import ConnectionString

SHARD_AWARE: Final = 1
"""``state`` of a shard that has adopted its identity."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard and its address.

    Attributes:
        host: connection string of its replica set, ``set/host:port,host:port``.
        topology_time: cluster time at which this shard was added, or at which another one was removed; None in entries
            written by versions without topology time.
        max_size: MB, an old limit that is kept but has no effect.
    """

    id: str
    host: str
    topology_time: Timestamp | None = None
    is_draining: bool = False
    tags: tuple[str, ...] = ()
    max_size: int | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ShardEntry":
        """Read a decoded document."""
        return cls(
            required(document, "_id", str),
            required(document, "host", str),
            optional(document, "topologyTime", Timestamp),
            bool(document.get("draining")),
            tuple(optional(document, "tags", list) or ()),
            optional(document, "maxSize", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB 6.0 writes it when a shard is added."""
        document: dict[str, Any] = {"_id": self.id, "host": self.host}
        if self.max_size is not None:
            document["maxSize"] = self.max_size
        document["state"] = SHARD_AWARE
        if self.topology_time is not None:
            document["topologyTime"] = self.topology_time
        if self.is_draining:
            document["draining"] = True
        if self.tags:
            document["tags"] = list(self.tags)
        return document

    @property
    def connection_string(self) -> ConnectionString:
        """Its replica set and the members in ``host``.

        Raises FailedToParse. As in MongoDB, such an entry can be read, so that it can be removed.
        """
        return ConnectionString.parse(self.host)


def topology_time(shards: Iterable[ShardEntry]) -> int:
    """Return when a shard was last added or removed, given all shards; packed, see `pack_timestamp`, and 0 if unknown.

    The removal of a shard writes its time into the entry of another one, so the latest time counts.
    """
    return max((pack_timestamp(each.topology_time) for each in shards if each.topology_time is not None), default=0)
