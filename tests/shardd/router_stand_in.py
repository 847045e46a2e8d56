"""A stand-in for a router on one sharded collection, driven by hand."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from bson import Int64, MaxKey, MinKey
from pymongo.errors import OperationFailure

from tests.shardd.mini_cluster import MAJORITY, Client, MiniCluster

transaction_numbers = count(1)
GOSSIP = ("$clusterTime", "$configTime", "$topologyTime", "operationTime", "electionId", "opTime")


class ShardedNamespace:
    """One sharded collection of a small cluster, and its versions."""

    def __init__(
        self, cluster: MiniCluster, namespace: str, key: dict[str, Any], primary: str, **options: object
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.db, _, self.collection = namespace.partition(".")
        self.key = key
        self.primary = primary
        self.created = cluster.shard_collection(namespace, key, primary, **options)

    @property
    def database_version(self) -> dict[str, Any]:
        """The version of the database in the catalog."""
        entry = self._config().config.databases.find_one({"_id": self.db})
        assert entry is not None
        return dict(entry["version"])

    def entry(self) -> dict[str, Any]:
        """Its document in the catalog."""
        entry = self._config().config.collections.find_one({"_id": self.namespace})
        assert entry is not None
        return dict(entry)

    def chunks(self) -> list[dict[str, Any]]:
        """Its chunks in the catalog, by lower bound."""
        return list(self._config().config.chunks.find({"uuid": self.entry()["uuid"]}).sort("min", 1))

    def version(self, shard: str = "sh0") -> dict[str, Any]:
        """The version that a router would send to a shard now."""
        return self.cluster.shard_version(self.namespace, shard)

    def run(self, command: Mapping[str, Any], shard: str = "sh0", *, db: str | None = None) -> dict[str, Any]:
        """Run a command unchanged on a shard; returns the reply, even of a failed one, without gossiped times."""
        return {name: value for name, value in self.gossiping(command, shard, db=db).items() if name not in GOSSIP}

    def gossiping(self, command: Mapping[str, Any], shard: str = "sh0", *, db: str | None = None) -> dict[str, Any]:
        """As `run`, with the gossiped times in the reply."""
        client = self.cluster.kept_client(self.cluster.shards[shard].members[0])
        try:
            return dict(client[db or self.db].command(dict(command), check=False))
        except OperationFailure as failure:
            return dict(failure.details or {})

    def versioned(
        self, command: Mapping[str, Any], shard: str = "sh0", *, version: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run a command with the shard's version, or with a given one."""
        return self.run({**command, "shardVersion": dict(version or self.version(shard))}, shard)

    def retryable(self, command: Mapping[str, Any], *, number: int | None = None) -> dict[str, Any]:
        """Run a write as a retryable one, with a given or a new number, in the session of the open client."""
        return self.versioned({**command, "txnNumber": Int64(number or next(transaction_numbers))})

    def insert(self, *documents: Mapping[str, Any], shard: str = "sh0") -> None:
        """Insert documents on a shard."""
        reply = self.versioned({"insert": self.collection, "documents": list(documents)}, shard)
        assert reply == {"n": len(documents), "ok": 1.0}, reply

    def documents(self, shard: str = "sh0") -> list[dict[str, Any]]:
        """The documents on a shard, by ``_id``."""
        reply = self.versioned({"find": self.collection, "sort": {"_id": 1}, "batchSize": 100_000}, shard)
        assert reply["ok"], reply
        return list(reply["cursor"]["firstBatch"])

    def split(self, points: Sequence[Mapping[str, Any]], *, low: object = None, high: object = None) -> dict[str, Any]:
        """Split a chunk of the primary shard, by default the one that covers all keys."""
        entry = self.entry()
        return self.run(
            {
                "splitChunk": self.namespace,
                "from": self.primary,
                "keyPattern": self.key,
                "min": low or dict.fromkeys(self.key, MinKey()),
                "max": high or dict.fromkeys(self.key, MaxKey()),
                "splitKeys": list(points),
                "epoch": entry["lastmodEpoch"],
                "timestamp": entry["timestamp"],
            },
            self.primary,
            db="admin",
        )

    def move(self, low: Mapping[str, Any], high: Mapping[str, Any], to: str) -> None:
        """Have the config server move a range."""
        move = {"_configsvrMoveRange": self.namespace, "toShard": to, "min": low, "max": high}
        self._config().admin.command({**move, "writeConcern": MAJORITY})

    def _config(self) -> Client:
        return self.cluster.kept_client(self.cluster.config.members[0])
