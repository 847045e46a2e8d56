"""``checkMetadataConsistency``, a command of MongoDB 7.0: finds inconsistencies in the catalog and on the shards."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import send_to_primary_shard
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.catalog.consistency import Inconsistency, namespace_of
from shardwright.sharding.catalog.reads import aggregate_in_catalog
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, is_string

_INTERNAL: Final = frozenset({"admin", "config", "local"})


async def check_metadata_consistency(operation: Operation) -> Reply:
    """Finds damage in the metadata of a collection, of a database or, on the admin database, of the whole cluster."""
    request = operation.request
    about = operation.argument(b"checkMetadataConsistency")
    if is_string(about):
        found = await _check_database(operation, request.db, about)
    elif request.db == "admin":
        found = await _check_cluster(operation)
    else:
        found = await _check_database(operation, request.db)
    return {"cursor": {"firstBatch": found, "id": Int64(0), "ns": f"{request.db}.$cmd.aggregate"}}


async def _check_database(operation: Operation, db: str, collection: str = "") -> list[dict[str, Any]]:
    if db in _INTERNAL:
        raise CommandError(ErrorCode.InvalidNamespace, f"the {db} database has no sharding metadata to check")
    check = {
        "_shardsvrCheckMetadataConsistency": collection or 1,
        "checkIndexes": Arguments.of(operation.request).boolean(b"checkIndexes"),
    }
    try:
        reply = await send_to_primary_shard(operation, db, command_body(db, check), may_repeat=True)
    except CommandError as error:
        if damage := await _damage_of_entry(operation, db, error):
            return [damage]
        raise
    found: list[dict[str, Any]] = reply.get(b"inconsistencies")
    return found


async def _damage_of_entry(operation: Operation, db: str, error: CommandError) -> dict[str, Any] | None:
    """Return the inconsistency of a database's catalog entry, if that is why the database cannot be checked."""
    if error.code not in (ErrorCode.ShardNotFound, ErrorCode.StaleDbVersion):
        return None
    for entry in await _catalog(operation, "databases", {"_id": db}):
        about = {"shard": entry["primary"], "databaseVersion": entry["version"]}
        if error.code == ErrorCode.StaleDbVersion:  # the router has refreshed several times before it raises this
            return Inconsistency.OutdatedDatabaseEntry.document(db, **about, reason=error.message)
        if entry["primary"] not in await operation.context.shards.all_ids():
            return Inconsistency.DatabaseOnUnknownShard.document(db, **about)
    return None


async def _check_cluster(operation: Operation) -> list[dict[str, Any]]:
    """Check one database after the other, then metadata outside of databases."""
    stray_chunks = await _stray_chunks(operation)
    databases = await _databases(operation)
    found: list[dict[str, Any]] = []
    for db in databases:
        try:
            found += await _check_database(operation, db)
        except CommandError as error:
            if error.code != ErrorCode.NamespaceNotFound:  # dropped since the list was read
                raise
    # A check locks its database, so operations that were creating or dropping collections before it have ended by now.
    for uuid in set(stray_chunks).intersection(await _stray_chunks(operation)):
        found.append(Inconsistency.StrayChunks.document("config.chunks", collectionUUID=uuid))
    found += await _hidden_collections(operation)
    found += await _stray_databases(operation, databases)
    return sorted(found, key=namespace_of)


async def _databases(operation: Operation) -> list[str]:
    return [str(each["_id"]) for each in await _catalog(operation, "databases")]


async def _hidden_collections(operation: Operation) -> list[dict[str, Any]]:
    """Return the sharded collections of databases that do not exist.

    A database is created before its collections, and dropped after them. A collection that lacks a database before and
    after the databases are read is therefore not just being created or dropped.
    """
    before = await _catalog(operation, "collections")
    databases = _INTERNAL.union(await _databases(operation))
    after = {each["uuid"] for each in await _catalog(operation, "collections")}
    return [
        Inconsistency.HiddenShardedCollection.document(each["_id"], collectionUUID=each["uuid"])
        for each in before
        if each["_id"].partition(".")[0] not in databases and each["uuid"] in after
    ]


async def _stray_databases(operation: Operation, before: Iterable[str]) -> list[dict[str, Any]]:
    """Return the databases of shards that the catalog had neither before nor after the shards were read."""
    listing = {"listDatabases": 1, "nameOnly": True}
    on_shards: dict[str, Sequence[str]] = {}
    for shard in await operation.context.shards.all_ids():
        reply = await operation.context.sender.command(shard, "admin", listing, may_repeat=True)
        on_shards[shard] = [each["name"] for each in reply["databases"]]
    known = _INTERNAL.union(before, await _databases(operation))
    return [
        Inconsistency.StrayDatabase.document(db, shard=shard)
        for shard, databases in on_shards.items()
        for db in databases
        if db not in known
    ]


async def _stray_chunks(operation: Operation) -> list[Binary]:
    """Return the UUIDs of collections that have chunks but no catalog entry."""
    by_uuid = {"$group": {"_id": "$uuid"}}
    entry = {"$lookup": {"from": "collections", "localField": "_id", "foreignField": "uuid", "as": "entry"}}
    pipeline: list[Mapping[str, Any]] = [by_uuid, entry, {"$match": {"entry": []}}]
    documents = await operation.context.catalog.read(aggregate_in_catalog("chunks", pipeline))
    return [decode_document(document)["_id"] for document in documents]


async def _catalog(
    operation: Operation, collection: str, query: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    documents = await operation.context.catalog.find(collection, query or {}, sort={"_id": 1})
    return [decode_document(document) for document in documents]
