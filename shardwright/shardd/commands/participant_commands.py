"""What coordinators have the shards do that take part in a change."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.ddl.database_sections import database_closed
from shardwright.shardd.ddl.dropping import drop_database_here, drop_here
from shardwright.shardd.ddl.participant_sessions import execute_once
from shardwright.shardd.ddl.verbatim_stages import with_verbatim_stages
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.sharding.arguments import own_collection
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document
from shardwright.wire.request import Request


@command("_shardsvrCreateCollectionParticipant")
async def create_collection_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Have a collection of a given UUID with given indexes.

    Raises:
        CommandError: InvalidUUID, another collection of that name exists; TransactionTooOld, the coordinator has gone
            on.
    """
    namespace = own_collection(request)
    Arguments.of(request).raw(b"options")
    uuid = Arguments.of(request).uuid(b"collectionUUID")
    options = {name: value for name, value in request.get(b"options").items() if name != "uuid"}
    id_index = raw_document(Arguments.of(request).raw(b"idIndex")) if b"idIndex" in request.fields else None
    indexes = [raw_document(each) for each in request.documents(b"indexes")] if b"indexes" in request.fields else []

    async def create() -> None:
        mongod = shard.context.mongod
        await local_collections.create_with_uuid(mongod, namespace, uuid, options, id_index)
        await local_collections.create_indexes(mongod, namespace, indexes)

    await execute_once(shard.context, request, str(namespace), create)
    shard.context.namespace(str(namespace)).forget()
    return {}


@command("_shardsvrDropCollectionParticipant")
async def drop_collection_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop what is here of a collection that has left the catalog, and whatever else has its name.

    Raises:
        CommandError: ConflictingOperationInProgress, a collection of that name is sharded; TransactionTooOld, the
            coordinator has gone on; LockBusy, a write under way did not end.
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


@command("_shardsvrDropDatabaseParticipant")
async def drop_database_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop what is here of a database whose collections have left the catalog, and forget what was known of it.

    Raises:
        CommandError: ConflictingOperationInProgress, the database is not the one that was to be dropped;
            TransactionTooOld, the coordinator has gone on; LockBusy, a write under way did not end.
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


@command("_shardsvrCollModParticipant")
async def coll_mod_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Change options of the collection as it is here; ``result`` is what mongod answered.

    Raises:
        CommandError: TransactionTooOld, the coordinator has gone on; what mongod answers.
    """
    namespace = own_collection(request)
    raw = Arguments.of(request).raw(b"collModRequest")
    fields = with_verbatim_stages(request.get(b"collModRequest"), raw)
    order = {"collMod": namespace.collection, **fields, "writeConcern": MAJORITY}
    result: dict[str, Any] = {"ok": 1.0}

    async def modify() -> None:
        reply = await local_collections.change(shard.context.mongod, namespace, order)
        result.update((name, value) for name, value in reply.items() if name not in ("$clusterTime", "operationTime"))

    await execute_once(shard.context, request, str(namespace), modify)
    return {"result": result}


async def _check_not_sharded(shard: ShardComponents, namespace: Namespace) -> None:
    """A drop takes a collection out of the catalog before it comes here; one that is there now is another one.

    Raises:
        CommandError: ConflictingOperationInProgress.
    """
    state = shard.context.namespace(str(namespace))
    state.forget()
    await shard.context.refresher.refresh_collection(state)
    if state.table is not None:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            f"the collection {namespace} that was to be dropped has been dropped, and another one is sharded",
        )


async def _check_database(shard: ShardComponents, db: str, version: DatabaseVersion) -> None:
    """A database leaves the catalog after all shards have dropped what they had of it.

    Raises:
        CommandError: ConflictingOperationInProgress, it has left it, so that the command comes late.
    """
    state = shard.context.database(db)
    state.forget()
    await shard.context.refresher.refresh_database(state)
    if state.entry is None or not state.entry.version.matches(version):
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"the database {db} of version {version} has been dropped already"
        )
