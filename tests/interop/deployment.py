"""The servers of a cluster, genuine or ours, that receive routers' commands, with a common interface.

Tests send the same internal commands to both kinds. Shards are numbered; 0 is the primary shard of databases.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.genuine_cluster import GenuineCluster
from tests.interop.normal_form import normal_form
from tests.local_cluster import Client, RunningCluster

Document = dict[str, Any]

MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}
LOW, HIGH = MinKey(), MaxKey()

NO_CHUNKS: Final = Timestamp(0, 0)
UNSHARDED: Final = {"t": Timestamp(0, 0), "e": ObjectId("0" * 24), "v": Timestamp(0, 0)}

_GOSSIP: Final = frozenset({"$clusterTime", "operationTime"})
"""Every reply ends with these."""
_SERVER_GOSSIP: Final = frozenset({"$configTime", "$topologyTime", "lastCommittedOpTime", "electionId", "opTime"})
"""Replies of genuine servers also end with these; our daemons omit them, since a router hides them anyway."""


class Deployment:
    """A cluster and the commands for its servers.

    Attributes:
        config: a client of the primary config server.
        shards: clients of the primaries of the shards.
        shard_ids: their ids.
    """

    def __init__(self, name: str, config: Client, shards: Mapping[str, Client], texts: Mapping[str, str]) -> None:
        self.name = name
        self.config = config
        self.shard_ids = list(shards)
        self.shards = list(shards.values())
        self._texts = texts

    def __repr__(self) -> str:
        """Its name, for error messages."""
        return self.name

    def on_config(self, command: Mapping[str, Any], *, write_concern: Mapping[str, Any] | None = MAJORITY) -> Document:
        """Send a command to the config server; returns the reply, which may be an error."""
        return _run(self.config, "admin", {**command, **({"writeConcern": write_concern} if write_concern else {})})

    def on_shard(self, shard: int, command: Mapping[str, Any], *, db: str = "admin") -> Document:
        """Send a command to a shard; returns the reply, which may be an error."""
        return _run(self.shards[shard], db, command)

    def normal(self, value: Any) -> list[str]:  # noqa: ANN401 - any BSON value
        """Lines that are the same on both clusters for equivalent documents (see `normal_form`)."""
        return normal_form(value, self._texts)

    def create_database(self, db: str) -> Document:
        """Create a database on shard 0 unless it exists; returns its version."""
        reply = self.on_config({"_configsvrCreateDatabase": db, "primaryShardId": self.shard_ids[0]})
        assert reply["ok"], reply
        version: Document = reply["databaseVersion"]
        return version

    def shard_collection(self, namespace: str, key: Mapping[str, Any], **options: Any) -> Document:  # noqa: ANN401 - any option
        """Shard a collection as a router does; returns the reply."""
        db, _, collection = namespace.partition(".")
        version = self.create_database(db)
        command = {"_shardsvrCreateCollection": collection, "shardKey": key, **options, "databaseVersion": version}
        return self.on_shard(0, {**command, "writeConcern": MAJORITY}, db=db)

    def entry(self, namespace: str) -> Document:
        """The document of a collection in ``config.collections``."""
        found: Document | None = self.config.config.collections.find_one({"_id": namespace})
        assert found is not None, f"{namespace} is not sharded on {self}"
        return found

    def chunks(self, namespace: str) -> list[Document]:
        """The chunks of a collection in the order of their bounds."""
        return list(self.config.config.chunks.find({"uuid": self.entry(namespace)["uuid"]}).sort("min"))

    def changes(self, namespace: str) -> list[Document]:
        """The changelog's entries for a namespace."""
        return list(self.config.config.changelog.find({"ns": namespace}).sort("$natural"))

    def version(self, namespace: str, lastmod: Timestamp) -> Document:
        """A version of the collection's current incarnation."""
        entry = self.entry(namespace)
        return {"t": entry["timestamp"], "e": entry["lastmodEpoch"], "v": lastmod}

    def shard_version(self, namespace: str, shard: int) -> Document:
        """The version that a router with current metadata sends to a shard."""
        owned = [chunk["lastmod"] for chunk in self.chunks(namespace) if chunk["shard"] == self.shard_ids[shard]]
        return self.version(namespace, max(owned, default=NO_CHUNKS))

    def split(self, namespace: str, low: Document, high: Document, *points: Document, shard: int = 0) -> Document:
        """Make a shard split a chunk; returns the reply."""
        entry = self.entry(namespace)
        return self.on_shard(
            shard,
            {
                "splitChunk": namespace,
                "from": self.shard_ids[shard],
                "keyPattern": entry["key"],
                "epoch": entry["lastmodEpoch"],
                "timestamp": entry["timestamp"],
                "min": low,
                "max": high,
                "splitKeys": list(points),
            },
        )

    def merge(self, namespace: str, low: Document, high: Document, *, shard: int = 0) -> Document:
        """Make a shard merge its chunks; returns the reply."""
        entry = self.entry(namespace)
        return self.on_shard(
            shard,
            {
                "mergeChunks": namespace,
                "bounds": [low, high],
                "epoch": entry["lastmodEpoch"],
                "timestamp": entry["timestamp"],
            },
        )

    def move(self, namespace: str, to: int, **options: Any) -> Document:  # noqa: ANN401 - any option
        """Make the config server move a range; returns the reply."""
        return self.on_config({"_configsvrMoveRange": namespace, "toShard": self.shard_ids[to], **options})


def _run(client: Client, db: str, command: Mapping[str, Any]) -> Document:
    try:
        reply: Document = client[db].command(dict(command))
    except OperationFailure as failure:
        reply = dict(failure.details or {})
    return {name: value for name, value in reply.items() if name not in _GOSSIP | _SERVER_GOSSIP}


@contextmanager
def genuine_deployment(cluster: GenuineCluster) -> Iterator[Deployment]:
    """The servers of a genuine cluster."""
    with ExitStack() as clients:
        yield _deployment("genuine", cluster.config, cluster.shards, "cfg/" + cluster.config, clients)


@contextmanager
def own_deployment(cluster: RunningCluster) -> Iterator[Deployment]:
    """The daemons of our cluster."""
    shards = {shard: cluster.address(f"{shard}.0.shardd") for shard in sorted(cluster.shards)}
    config = cluster.address("config.0.configd")
    with ExitStack() as clients:
        yield _deployment("ours", config, shards, "config/" + config, clients)


def _deployment(
    name: str, config: str, shards: Mapping[str, str], config_string: str, clients: ExitStack
) -> Deployment:
    def connect(address: str) -> Client:
        # A server that fails during a test should not cost half a minute in each later test.
        client: Client = MongoClient(f"mongodb://{address}/", directConnection=True, serverSelectionTimeoutMS=5000)
        return clients.enter_context(client)

    texts = {config_string: "<config string>", **dict.fromkeys(_names(config), "<config host>")}
    for number, (shard, address) in enumerate(shards.items()):
        texts |= {f"{shard}/{address}": f"<shard string {number}>", shard: f"<shard {number}>"}
        texts |= dict.fromkeys(_names(address), f"<shard host {number}>")
    return Deployment(name, connect(config), {shard: connect(address) for shard, address in shards.items()}, texts)


def _names(address: str) -> list[str]:
    """A server's address as known to others, and as used by a mongod on this machine for itself."""
    return [address, f"{socket.gethostname()}:{address.rpartition(':')[2]}"]
