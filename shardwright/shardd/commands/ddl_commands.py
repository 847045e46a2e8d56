"""The DDL commands that a router sends to the primary shard of a database."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.commands.command import ShardComponents, check_database_version
from shardwright.shardd.ddl.checks import check_expected_uuid
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.coordinators.create_collection import CreateCollection
from shardwright.shardd.ddl.coordinators.create_indexes import REQUEST, CreateIndexes
from shardwright.shardd.ddl.coordinators.drop_indexes import OF_MEASUREMENTS, DropIndexes
from shardwright.shardd.ddl.coordinators.drops import DropCollection, DropDatabase
from shardwright.shardd.ddl.coordinators.migration_blocking import SetAllowMigrations
from shardwright.shardd.ddl.coordinators.modify_collection import ModifyCollection
from shardwright.shardd.ddl.coordinators.move_primary import MovePrimary
from shardwright.shardd.ddl.coordinators.rename_collection import RenameCollection
from shardwright.shardd.ddl.coordinators.service import Check
from shardwright.shardd.ddl.coordinators.shard_key_changes import RefineCollectionShardKey, ReshardCollection
from shardwright.shardd.ddl.time_series import (
    MeaningChangedError,
    buckets_to_shard,
    change_of_buckets,
    check_is_time_series,
    granularity_of,
    sharded_time_series,
)
from shardwright.sharding.arguments import full_namespace, own_collection
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion
from shardwright.wire.arguments import Arguments
from shardwright.wire.errors import missing_field, wrong_type
from shardwright.wire.rawbson import ARRAY, find, is_string
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
