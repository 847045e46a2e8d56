"""Reading the input of the checker of the catalog."""

from collections.abc import Sequence

import bson

from shardwright.sharding.shard_key import ShardKeyPattern
from tests.chaos.checkers.catalog import CatalogView, ShardedCollection
from tests.chaos.stage import Document
from tests.integration.sharded import CATALOG_OPTIONS
from tests.local_cluster import Client
from tests.migration.fault_cluster import FaultCluster


def read_catalog(cluster: FaultCluster, router: Client, databases: Sequence[str]) -> CatalogView:
    """The current state of these databases in the catalog and on the shards' primaries."""
    config = router.get_database("config", CATALOG_OPTIONS)
    sharded = {}
    for entry in config["collections"].find():
        if entry["_id"].partition(".")[0] in databases:
            found = list(config["chunks"].find({"uuid": entry["uuid"]}))
            sharded[entry["_id"]] = _sharded(entry, found)
    primaries = {entry["_id"]: entry["primary"] for entry in config["databases"].find() if entry["_id"] in databases}
    local = {shard: _local(cluster, shard, databases) for shard in cluster.running.shards}
    return CatalogView(sharded, primaries, local)


def _sharded(entry: Document, chunks: list[Document]) -> ShardedCollection:
    pattern = ShardKeyPattern.from_mapping(entry["key"])
    bounds = [(_bytes(pattern, chunk["min"]), _bytes(pattern, chunk["max"]), chunk["shard"]) for chunk in chunks]
    return ShardedCollection(
        entry["uuid"].hex, tuple(sorted(bounds)), pattern.global_min_bytes(), pattern.global_max_bytes()
    )


def _local(cluster: FaultCluster, shard: str, databases: Sequence[str]) -> dict[str, str]:
    client = cluster.client(f"{shard}.{cluster.primary_index(shard)}.mongod")
    found = {}
    for name in databases:
        for collection in client.get_database(name, CATALOG_OPTIONS).list_collections():
            found[f"{name}.{collection['name']}"] = bytes(collection["info"]["uuid"]).hex()
    return found


def _bytes(pattern: ShardKeyPattern, key: Document) -> bytes:
    return pattern.key_bytes(bson.encode(key))
