"""The shard's identity, from the ``shardIdentity`` document of ``admin.system.version``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.objectid import ObjectId

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import ConnectionString

IDENTITY_ID = "shardIdentity"


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The identity that makes a replica set a shard.

    Attributes:
        config_string: the config servers, ``set/host:port,…``.
    """

    shard_name: str
    cluster_id: ObjectId
    config_string: str

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ShardIdentity":
        """Read the document, with or without its ``_id``.

        Raises NoSuchKey, FailedToParse or UnsupportedFormat if a field is missing or malformed.
        """
        try:
            identity = cls(document["shardName"], document["clusterId"], document["configsvrConnectionString"])
        except KeyError as error:
            raise CommandError(ErrorCode.NoSuchKey, f"missing {error} in a shard identity") from error
        identity.config_servers  # noqa: B018 - parses, and so checks
        return identity

    @property
    def config_servers(self) -> ConnectionString:
        """The config servers.

        Raises FailedToParse, or UnsupportedFormat if they are not a replica set.
        """
        parsed = ConnectionString.parse(self.config_string)
        if not parsed.set_name:
            raise CommandError(
                ErrorCode.UnsupportedFormat, f"config server connection string can only be replica sets: {parsed}"
            )
        return parsed

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB writes it."""
        return {
            "_id": IDENTITY_ID,
            "shardName": self.shard_name,
            "clusterId": self.cluster_id,
            "configsvrConnectionString": self.config_string,
        }

    def is_same_shard(self, other: "ShardIdentity") -> bool:
        """Whether both are the same shard of the same cluster, even if the config servers' hosts differ."""
        return (self.shard_name, self.cluster_id, self.config_servers.set_name) == (
            other.shard_name,
            other.cluster_id,
            other.config_servers.set_name,
        )
