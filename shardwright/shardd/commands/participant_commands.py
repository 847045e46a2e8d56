"""Commands from coordinators to the participating shards of a DDL operation.

A participant raises TransactionTooOld if a command arrives after a newer one of its coordinator, and LockBusy if it
waits for a running write for too long.
"""

from typing import Any

from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.ddl.participants import (
    READS_AND_WRITES,
    UNBLOCK,
    database_closed,
    drop_database_here,
    drop_here,
    execute_once,
)
from shardwright.shardd.ddl.rename_participants import LocalRename
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.sharding.arguments import own_collection
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_exactly, raw_document
from shardwright.wire.request import Request


async def create_collection_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Create a collection with a given UUID and indexes, as ``listIndexes`` shows them, unless it exists.

    Raises InvalidUUID if another collection of that name exists.
    """
    namespace = own_collection(request)
    given = decode_exactly(Arguments.of(request).raw(b"options"))
    uuid = Arguments.of(request).uuid(b"collectionUUID")
    options = {name: value for name, value in given.items() if name != "uuid"}
    id_index = raw_document(Arguments.of(request).raw(b"idIndex")) if b"idIndex" in request.fields else None
    indexes = [decode_exactly(each) for each in request.documents(b"indexes")] if b"indexes" in request.fields else []

    async def create() -> None:
        mongod = shard.context.mongod
        await local_collections.create_with_uuid(mongod, namespace, uuid, options, id_index)
        await local_collections.create_indexes(mongod, namespace, local_collections.specifications(indexes, options))

    await execute_once(shard.context, request, str(namespace), create)
    shard.context.namespace(str(namespace)).forget()
    return {}


async def drop_collection_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop the local part of a collection that was removed from the catalog, or any other collection of that name.

    Raises ConflictingOperationInProgress if a collection of that name is sharded.
    """
    namespace = own_collection(request)

    async def drop() -> None:
        await shard.migrations.end_all(str(namespace), "Collection is being dropped")
        state = shard.context.namespace(str(namespace))
        async with closed(state, {"command": request.name, "ns": str(namespace)}):
            await _check_not_sharded(shard, namespace)
            await shard.context.config_times.wait_durable()
            await drop_here(shard.context, namespace)
        await shard.context.writer.wait_collection_saved(state.namespace)

    await execute_once(shard.context, request, str(namespace), drop)
    return {}


async def drop_database_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop the local part of a database whose collections were removed from the catalog, and its cached metadata.

    Raises ConflictingOperationInProgress if the database has another version.
    """
    db = request.db
    version = DatabaseVersion.from_value(Arguments.of(request).required_value(DATABASE_VERSION))

    async def drop() -> None:
        async with database_closed(shard.context, db, {"command": request.name, "db": db}):
            await _check_database(shard, db, version)
            await shard.context.config_times.wait_durable()
            await drop_database_here(shard.context, db, is_primary_shard=False)

    await execute_once(shard.context, request, db, drop)
    return {}


async def coll_mod_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Change the local collection's options; ``result`` is mongod's reply.

    ``needsUnblock`` admits the operations blocked by ``_shardsvrParticipantBlock`` afterwards. ``performViewChange``
    says that this shard also has the view of the time-series collection whose buckets change.
    """
    namespace, arguments = own_collection(request), Arguments.of(request)
    fields = decode_exactly(arguments.raw(b"collModRequest"))
    result: dict[str, Any] = {"ok": 1.0}

    async def modify() -> None:
        mongod = shard.context.mongod
        if arguments.boolean(b"performViewChange") and "timeseries" in fields:
            await local_collections.change_granularity(mongod, namespace, fields["timeseries"])
        modification = {"collMod": namespace.collection, **fields, "writeConcern": MAJORITY}
        reply = await local_collections.change(mongod, namespace, modification)
        result.update((name, value) for name, value in reply.items() if name not in ("$clusterTime", "operationTime"))
        shard.context.views.forget()
        if arguments.boolean(b"needsUnblock"):
            await shard.blocked.unblock(namespace)

    await execute_once(shard.context, request, str(namespace), modify)
    return {"result": result}


async def participant_block(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Block operations on a collection, or unblock them with MongoDB 7.0's ``blockType`` for that."""
    namespace = own_collection(request)
    kind = Arguments.of(request).maybe_string(b"blockType") or READS_AND_WRITES
    if kind not in (READS_AND_WRITES, UNBLOCK):
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{kind}' for field '{request.name}.blockType' is not a valid value.",
        )

    async def work() -> None:
        await (shard.blocked.unblock if kind == UNBLOCK else shard.blocked.block)(namespace)

    await execute_once(shard.context, request, str(namespace), work)
    return {}


async def rename_collection_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Rename the local part of a collection; operations on both names wait for the command that ends the rename.

    Raises NamespaceExists if ``replacesTarget`` is false and the new name is taken.
    """
    arguments, source = Arguments.of(request), own_collection(request)
    target = Namespace.parse(arguments.string(b"to"))
    rename = LocalRename(source, target, arguments.uuid(b"sourceUUID"), arguments.boolean(b"stayTemp"))

    async def work() -> None:
        await shard.renames.rename(rename, replaces_target=arguments.boolean(b"replacesTarget", default=True))

    await execute_once(shard.context, request, str(source), work)
    return {}


async def end_rename_of_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Admit operations on both names again, with the metadata that the catalog has now."""
    source, target = own_collection(request), Namespace.parse(Arguments.of(request).string(b"to"))

    async def work() -> None:
        await shard.renames.finish(source, target)

    await execute_once(shard.context, request, str(source), work)
    return {}


async def _check_not_sharded(shard: ShardComponents, namespace: Namespace) -> None:
    """Check that the catalog has no new collection of that name, else raise ConflictingOperationInProgress.

    The dropped one was removed before this command.
    """
    state = shard.context.namespace(str(namespace))
    state.forget()
    await shard.context.refresher.refresh_collection(state)
    if state.table is not None:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            f"the collection {namespace} has already been dropped, and another one of that name is sharded",
        )


async def _check_database(shard: ShardComponents, db: str, version: DatabaseVersion) -> None:
    """Check that the catalog still has the database, else raise ConflictingOperationInProgress: the command is late.

    The database is removed only after all shards have dropped their part.
    """
    state = shard.context.database(db)
    state.forget()
    await shard.context.refresher.refresh_database(state)
    if state.entry is None or not state.entry.version.matches(version):
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"the database {db} of version {version} has been dropped already"
        )
