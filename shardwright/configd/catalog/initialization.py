"""First step of a new primary of the config servers: collections, indexes and the identity of the cluster.

Every step can be repeated, and is repeated at every step-up.
"""

from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.configd.catalog.feature_version import read_feature_version, write_feature_version
from shardwright.configd.catalog.transactions import Commands
from shardwright.sharding.catalog.indexes import CAPPED_BYTES, INDEXES
from shardwright.sharding.catalog.version_entry import VersionEntry
from shardwright.sharding.feature_version import NEWEST
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes

_DB: Final = "config"
_MAJORITY: Final = {"w": "majority"}

# Present in every MongoDB catalog, even if empty.
_PLAIN_COLLECTIONS: Final = ("collections", "databases", "settings", "version")

# Shards hold it; a config server does not.
_NOT_HERE: Final = frozenset({"system.sessions"})


async def initialize_catalog(mongod: Commands) -> ObjectId:
    """Create everything that the catalog lacks; returns the id of the cluster.

    Raises:
        CommandError: mongod refused, for example because it is not primary any more; or
            IncompatibleShardingConfigVersion, the catalog has another version.
        BackendError: mongod does not answer.
        UnfitClusterError: this daemon does not support the cluster's feature version.
    """
    cluster_id = await _read_cluster_id(mongod)
    await read_feature_version(mongod)
    for name, size in CAPPED_BYTES.items():
        await _create(mongod, name, {"capped": True, "size": size})
    for name in _PLAIN_COLLECTIONS:
        await _create(mongod, name, {})
    for name, indexes in INDEXES.items():
        if name not in _NOT_HERE:
            specifications = [index.to_specification() for index in indexes]
            await mongod.command(
                _DB,
                {
                    "createIndexes": name,
                    "indexes": specifications,
                    "commitQuorum": "majority",
                    "writeConcern": _MAJORITY,
                },
            )
    return cluster_id or await _write_cluster_id(mongod)


async def _create(mongod: Commands, name: str, options: dict[str, Any]) -> None:
    try:
        await mongod.command(_DB, {"create": name, **options, "writeConcern": _MAJORITY})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceExists:
            raise


async def _read_cluster_id(mongod: Commands) -> ObjectId | None:
    reply = await mongod.command(
        _DB, {"find": "version", "filter": {}, "limit": 1, "readConcern": {"level": "majority"}}
    )
    documents = reply["cursor"]["firstBatch"]
    return VersionEntry.from_document(documents[0]).cluster_id if documents else None


async def _write_cluster_id(mongod: Commands) -> ObjectId:
    """Write the version document as the last step, so that a catalog with it is complete.

    A new cluster starts with the newest feature version, because no older release has to read it.
    """
    await write_feature_version(mongod, NEWEST)
    cluster_id = ObjectId()
    insert = {
        "insert": "version",
        "documents": [VersionEntry(cluster_id).to_document()],
        "writeConcern": _MAJORITY,
    }
    reply = await mongod.command(_DB, insert)
    check_writes(reply)
    return cluster_id
