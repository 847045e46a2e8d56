"""The DDL commands: from a router to the primary shard of a database, and from coordinators to participating shards.

A participant raises TransactionTooOld if a command arrives after a newer one of its coordinator, and LockBusy if it
waits for a running write for too long.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.commands.command import ShardComponents, check_database_version
from shardwright.shardd.ddl.coordinator import Coordinator, SetAllowMigrations, check_expected_uuid
from shardwright.shardd.ddl.create_collection import CreateCollection, buckets_to_shard
from shardwright.shardd.ddl.create_indexes import REQUEST, CreateIndexes
from shardwright.shardd.ddl.drop_indexes import OF_MEASUREMENTS, DropIndexes
from shardwright.shardd.ddl.drops import DropCollection, DropDatabase
from shardwright.shardd.ddl.modify_collection import (
    MeaningChangedError,
    ModifyCollection,
    change_of_buckets,
    check_is_time_series,
    granularity_of,
    sharded_time_series,
)
from shardwright.shardd.ddl.move_primary import MovePrimary
from shardwright.shardd.ddl.participants import (
    READS_AND_WRITES,
    UNBLOCK,
    LocalRename,
    database_closed,
    drop_database_here,
    drop_here,
    execute_once,
)
from shardwright.shardd.ddl.rename_collection import RenameCollection
from shardwright.shardd.ddl.service import Check
from shardwright.shardd.ddl.shard_key_changes import RefineCollectionShardKey, ReshardCollection
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.sharding.namespace import Namespace, full_namespace, own_collection
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, wrong_type
from shardwright.wire.rawbson import ARRAY, decode_exactly, find, is_string, raw_document
from shardwright.wire.request import Request, documents_of_array

_CREATE_ARGUMENTS: Final = (
    "shardKey",
    "unique",
    "numInitialChunks",
    "presplitHashedZones",
    "collation",
    "initialSplitPoints",
    "timeseries",
    "implicitlyCreateIndex",
    "enforceUniquenessCheck",
    "collectionUUID",
)

_UUID: Final = b"collectionUUID"

_RESHARD_ARGUMENTS: Final = (
    "key",
    "unique",
    "collation",
    "numInitialChunks",
    "zones",
    "_presetReshardedChunks",
    "collectionUUID",
    "reshardingUUID",
)

_Meant = tuple[Namespace, Mapping[str, Any]]
"""Namespace and arguments of a change."""


async def create_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Shard a collection, creating it if it does not exist."""
    arguments: Mapping[str, Any] = {
        name: request.get(name.encode()) for name in _CREATE_ARGUMENTS if name.encode() in request.fields
    }
    return await _coordinate_meant(
        shard, request, CreateCollection, partial(buckets_to_shard, shard.context, own_collection(request), arguments)
    )


async def drop_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop a collection on all shards; for a sharded time-series collection, first its buckets."""
    namespace, expected = own_collection(request), Arguments.of(request).present(_UUID)
    if await sharded_time_series(shard.context, namespace) is not None:
        await _coordinate(shard, request, DropCollection, namespace.buckets, {})

    async def check() -> None:
        if await sharded_time_series(shard.context, namespace) is not None:
            raise MeaningChangedError(namespace)

    try:
        return await _coordinate(shard, request, DropCollection, namespace, expected, check)
    except MeaningChangedError:
        return await drop_collection(shard, request)


async def drop_database(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop a database on all shards."""
    arguments = {"databaseVersion": request.get(DATABASE_VERSION)}
    return await _coordinate(shard, request, DropDatabase, Namespace(request.db), arguments)


async def rename_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Rename a collection."""
    arguments = {
        **Arguments.of(request).present(b"expectedSourceUUID", b"expectedTargetUUID"),
        "to": Arguments.of(request).string(b"to"),
        "dropTarget": bool(request.get(b"dropTarget", False)),
        "stayTemp": bool(request.get(b"stayTemp", False)),
    }
    return await _coordinate(shard, request, RenameCollection, own_collection(request), arguments)


async def refine_collection_shard_key(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Add fields to the end of a collection's shard key."""
    Arguments.of(request).raw(b"newShardKey")
    arguments = Arguments.of(request).present(b"newShardKey", b"collectionUUID", b"enforceUniquenessCheck")
    return await _coordinate(shard, request, RefineCollectionShardKey, own_collection(request), arguments)


async def reshard_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Reshard a collection to another shard key."""
    arguments = {name: request.get(name.encode()) for name in _RESHARD_ARGUMENTS if name.encode() in request.fields}
    return await _coordinate(shard, request, ReshardCollection, full_namespace(request), arguments)


async def modify_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Change a collection's options on all shards that have it."""
    fields = {name: value for name, value in request.document.items() if _is_coll_mod_field(name, request.name)}
    namespace = own_collection(request)

    async def meant() -> _Meant:
        if granularity_of(fields) is not None:
            await check_is_time_series(shard.context, namespace)
        time_series = await sharded_time_series(shard.context, namespace)
        if time_series is None:
            return namespace, {"collModRequest": fields}
        return namespace.buckets, {"collModRequest": change_of_buckets(time_series, namespace, fields)}

    return await _coordinate_meant(shard, request, ModifyCollection, meant)


async def create_indexes(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Create indexes of a sharded collection on all shards that own chunks of it.

    Raises:
        CommandError: 40414 or TypeMismatch, there is no array of specifications; or an error of `CreateIndexes`.
    """
    command = Arguments.of(request).raw(REQUEST.encode())
    indexes = find(command, b"indexes")
    if indexes is None or indexes[0] != ARRAY:
        raise missing_field(f"{request.name}.{REQUEST}.indexes")
    documents_of_array(command, indexes, f"{request.name}.{REQUEST}.indexes")
    return await _coordinate(shard, request, CreateIndexes, own_collection(request), {REQUEST: bytes(command)})


async def drop_indexes(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop indexes of a collection on all shards that own chunks of it.

    Raises:
        CommandError: TypeMismatch; IndexNotFound, no shard has them; or the error of a shard.
    """
    namespace = own_collection(request)
    await check_expected_uuid(shard.context.mongod, namespace, Arguments.of(request).present(_UUID).get(_UUID.decode()))
    index = Arguments.of(request).required_value(b"index")
    if not (is_string(index) or isinstance(index, list | dict)):
        raise wrong_type("_shardsvrDropIndexes.index", request.fields[b"index"][0], "string", "object")
    if index == ["*"]:  # which means the same
        index = "*"

    async def meant() -> _Meant:
        if await sharded_time_series(shard.context, namespace) is None:
            return namespace, {"index": index}
        return namespace.buckets, {"index": index, OF_MEASUREMENTS: True}

    return await _coordinate_meant(shard, request, DropIndexes, meant)


async def move_primary(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Make another shard the primary shard of a database."""
    db = Arguments.of(request).namespace(request.name.encode())
    await check_database_version(shard.context, request, db)
    arguments = {"to": Arguments.of(request).string(b"to")}
    return await _coordinate(shard, request, MovePrimary, Namespace(db), arguments)


async def set_allow_migrations(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Forbid a collection's migrations, or allow them again."""
    arguments = {"allowMigrations": bool(Arguments.of(request).required_value(b"allowMigrations"))}
    return await _coordinate(shard, request, SetAllowMigrations, own_collection(request), arguments)


_GENERIC_FIELDS: Final = frozenset(
    {"lsid", "txnNumber", "writeConcern", "databaseVersion", "maxTimeMS", "comment", "apiVersion", "apiStrict", BYPASS}
)


async def _coordinate_meant(
    shard: ShardComponents, request: Request, kind: type[Coordinator], meant: Callable[[], Awaitable[_Meant]]
) -> dict[str, Any]:
    """Run a coordinator on a request's target: a collection, or the buckets of a time-series collection.

    The target may change while the coordinator waits for its locks, through the change that holds them. Then it is
    determined again.

    Args:
        meant: returns the current target and arguments.
    """
    namespace, arguments = decided = await meant()

    async def check() -> None:
        if await meant() != decided:
            raise MeaningChangedError(namespace)

    try:
        return await _coordinate(shard, request, kind, namespace, arguments, check)
    except MeaningChangedError:
        return await _coordinate_meant(shard, request, kind, meant)


async def _coordinate(
    shard: ShardComponents,
    request: Request,
    kind: type[Coordinator],
    namespace: Namespace,
    arguments: Mapping[str, Any],
    check: Check | None = None,
) -> dict[str, Any]:
    may_bypass = Arguments.of(request).boolean(BYPASS.encode())
    # `config.system.sessions` is sharded without a version, as its database has none.
    received = None if namespace.is_internal else _database_version(request)
    return await shard.coordinators.run(
        kind,
        namespace,
        arguments,
        received=received,
        check=check,
        may_bypass=may_bypass,
        lsid=request.raw_object(b"lsid"),
    )


def _database_version(request: Request) -> DatabaseVersion:
    """Return the version in the request; `check_database_version` has validated it."""
    return DatabaseVersion.from_span(request.body, request.fields[DATABASE_VERSION])


def _is_coll_mod_field(field: str, command_name: str) -> bool:
    """Whether a field of the request describes the change, rather than the execution of the command."""
    return field != command_name and not field.startswith("$") and field not in _GENERIC_FIELDS


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
