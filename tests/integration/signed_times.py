"""Cluster times in replies, and the keys that sign them."""

from typing import Any

from bson.timestamp import Timestamp

from shardwright.sharding.cluster_time import SigningKey, is_proven, pack_timestamp
from tests.integration.sharded import Document
from tests.local_cluster import Client


def signing_keys(config_mongod: Client) -> dict[int, SigningKey]:
    """The keys on the config servers, by their numbers."""
    found = [SigningKey.from_document(document) for document in config_mongod.admin["system.keys"].find()]
    return {key.id: key for key in found}


def time_in(reply: Document) -> dict[str, Any]:
    """The ``$clusterTime`` of a reply."""
    time: dict[str, Any] = reply["$clusterTime"]
    return time


def is_signed(reply: Document, keys: dict[int, SigningKey]) -> bool:
    """Whether its time is signed by the cluster."""
    signature = time_in(reply)["signature"]
    key = keys.get(signature["keyId"])
    return key is not None and is_proven(key, pack_timestamp(time_in(reply)["clusterTime"]), signature["hash"])


def later(reply: Document, seconds: int = 60) -> Timestamp:
    """Return a time after a reply's time."""
    time = time_in(reply)["clusterTime"]
    return Timestamp(time.time + seconds, 1)
