"""What the primary of the config servers does first: collections, indexes and the identity of the cluster.

Every step may be repeated, and is at every step-up.
"""

from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.configd.catalog.transactions import Commands
from shardwright.sharding.catalog.indexes import CAPPED_BYTES, INDEXES
from shardwright.sharding.catalog.version_entry import VersionEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DB: Final = "config"
_MAJORITY: Final = {"w": "majority"}

# Present in every catalog of MongoDB, even while they are empty.
_PLAIN_COLLECTIONS: Final = ("collections", "databases", "settings", "version")

# Belong to the shards; a config server has none of its own.
_NOT_HERE: Final = frozenset({"system.sessions"})


async def initialize_catalog(mongod: Commands) -> ObjectId:
    """Make the catalog what a config server expects; returns the id of the cluster.

    Raises:
        CommandError: mongod refused, for example because it is not primary any more; or the catalog is of another
            version (IncompatibleShardingConfigVersion).
        BackendError: mongod does not answer.
    """
    cluster_id = await _read_cluster_id(mongod)
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
    """The version document is written last, so that a catalog that has it has everything else."""
    cluster_id = ObjectId()
    insert = {
        "insert": "version",
        "documents": [VersionEntry(cluster_id).to_document()],
        "writeConcern": _MAJORITY,
    }
    reply = await mongod.command(_DB, insert)
    for failure in reply.get("writeErrors", ()):
        raise CommandError.from_reply(failure)
    if "writeConcernError" in reply:
        raise CommandError.from_reply(reply["writeConcernError"])
    return cluster_id
