"""Commands to a config server as sent by shards and routers, and the resulting catalog."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import MongoClient

MAJORITY = {"w": "majority", "wtimeout": 60_000}

GOSSIP = frozenset({"$clusterTime", "operationTime", "$configTime", "$topologyTime", "lastCommittedOpTime"})


@dataclass(frozen=True)
class Sharded:
    """A sharded collection and the identity of its incarnation."""

    namespace: str
    uuid: Binary
    epoch: ObjectId
    timestamp: Timestamp

    def version(self, lastmod: Timestamp) -> dict[str, Any]:
        """A version of its chunks."""
        return {"t": self.timestamp, "e": self.epoch, "v": lastmod}


class CatalogUser:
    """Sends commands to a config server."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self.client = client
        self.config = client.config

    def run(self, command: Mapping[str, Any], *, write_concern: Mapping[str, Any] | None = MAJORITY) -> dict[str, Any]:
        """The reply without gossip fields."""
        concern = {} if write_concern is None else {"writeConcern": write_concern}
        reply: dict[str, Any] = self.client.admin.command({**command, **concern})
        return {name: value for name, value in reply.items() if name not in GOSSIP}

    def shard_collection(
        self, namespace: str, bounds: Sequence[tuple[Any, Any, str]] | None = None, *, direction: object = 1
    ) -> Sharded:
        """Add a collection sharded on ``{x: direction}``, with one chunk on shard ``a`` or the given chunks."""
        now = Timestamp(int(time.time()), 1)
        sharded = Sharded(namespace, Binary.from_uuid(uuid4()), ObjectId(), now)
        self.run(self.create_command(sharded, bounds or [(MinKey(), MaxKey(), "a")], direction=direction))
        return sharded

    @staticmethod
    def create_command(
        sharded: Sharded, bounds: Sequence[tuple[Any, Any, str]], *, direction: object = 1
    ) -> dict[str, Any]:
        """The command that adds a collection."""
        collection = {
            "_id": sharded.namespace,
            "lastmodEpoch": sharded.epoch,
            "lastmod": datetime.now(UTC).replace(microsecond=0, tzinfo=None),
            "timestamp": sharded.timestamp,
            "uuid": sharded.uuid,
            "key": {"x": direction},
            "unique": False,
            "chunksAlreadySplitForDowngrade": False,
            "noBalance": False,
        }
        chunks = [
            {
                "_id": ObjectId(),
                "uuid": sharded.uuid,
                "min": {"x": low},
                "max": {"x": high},
                "shard": shard,
                "lastmod": Timestamp(1, number),
                "history": [{"validAfter": sharded.timestamp, "shard": shard}],
            }
            for number, (low, high, shard) in enumerate(bounds)
        ]
        return {"_configsvrCommitCreateCollection": sharded.namespace, "collection": collection, "chunks": chunks}

    def move_database(self, name: str, to: str) -> None:
        """Make another shard the primary shard of a database, which must not take long."""
        entry = self.config.databases.find_one({"_id": name})
        assert entry is not None
        move = {"to": to, "expectedDatabaseVersion": entry["version"], "maxTimeMS": 20_000}
        self.run({"_configsvrCommitMovePrimary": name, **move})
        entry = self.config.databases.find_one({"_id": name})
        assert entry is not None
        assert entry["primary"] == to

    def chunks(self, sharded: Sharded) -> list[dict[str, Any]]:
        """Its chunks in order."""
        return list(self.config.chunks.find({"uuid": sharded.uuid}).sort("min"))

    def bounds(self, sharded: Sharded) -> list[tuple[Any, Any, str, tuple[int, int]]]:
        """Its chunks in order: bounds, shard, and version."""
        return [
            (each["min"]["x"], each["max"]["x"], each["shard"], (each["lastmod"].time, each["lastmod"].inc))
            for each in self.chunks(sharded)
        ]

    def changes(self, namespace: str) -> list[dict[str, Any]]:
        """The changelog's entries for a namespace."""
        return list(self.config.changelog.find({"ns": namespace}))

    def now(self) -> Timestamp:
        """The cluster time."""
        time: Timestamp = self.client.admin.command("ping")["$clusterTime"]["clusterTime"]
        return time

    def split(self, sharded: Sharded, low: Any, high: Any, *points: Any, shard: str = "a") -> dict[str, Any]:  # noqa: ANN401 - values of keys
        """Split the chunk with the given bounds."""
        return self.run(
            {
                "_configsvrCommitChunkSplit": sharded.namespace,
                "collEpoch": sharded.epoch,
                "min": {"x": low},
                "max": {"x": high},
                "splitPoints": [{"x": point} for point in points],
                "shard": shard,
            }
        )

    def merge(self, sharded: Sharded, low: Any, high: Any, *, shard: str = "a") -> dict[str, Any]:  # noqa: ANN401 - values of keys
        """Merge the chunks between the given bounds."""
        return self.run(
            {
                "_configsvrCommitChunksMerge": sharded.namespace,
                "shard": shard,
                "collUUID": {"uuid": sharded.uuid},
                "chunkRange": {"min": {"x": low}, "max": {"x": high}},
                "validAfter": self.now(),
                "epoch": sharded.epoch,
                "timestamp": sharded.timestamp,
            }
        )

    def move(self, sharded: Sharded, low: Any, high: Any, source: str, target: str) -> dict[str, Any]:  # noqa: ANN401 - values of keys
        """Move the range between the given bounds."""
        chunks = self.chunks(sharded)
        newest = max(chunk["lastmod"] for chunk in chunks)
        return self.run(
            {
                "_configsvrCommitChunkMigration": sharded.namespace,
                "fromShard": source,
                "toShard": target,
                "migratedChunk": {"min": {"x": low}, "max": {"x": high}, "lastmod": sharded.version(newest)},
                "fromShardCollectionVersion": sharded.version(newest),
                "validAfter": self.now(),
            }
        )
