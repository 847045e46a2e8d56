"""The attributes of a sharded collection in the catalog, apart from its chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import ChunkVersion


@dataclass(frozen=True, slots=True)
class ShardedCollection:
    """One incarnation of a sharded collection, as in `config.collections`.

    ``time_series`` is set if it holds the buckets of a time-series collection.
    """

    namespace: Namespace
    uuid: UUID
    epoch: ObjectId
    timestamp: Timestamp
    key_pattern: ShardKeyPattern
    unique: bool = False
    default_collation: Mapping[str, Any] | None = None
    allow_migrations: bool = True
    max_chunk_size_bytes: int | None = None
    time_series: TimeSeriesFields | None = None

    def version(self, packed: int) -> ChunkVersion:
        """Return a version of this incarnation of the collection."""
        return ChunkVersion.from_packed(packed, self.epoch, self.timestamp)
