"""Giving a sharded collection another shard key: ``reshardCollection``, and the commands that end it early."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from bson.binary import Binary

from shardwright.router.commands.command_registry import command
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.shard_key import refuse_repeated_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import UNKNOWN_FIELD
from shardwright.wire.rawbson import raw_document

_OPTIONS: Final = (b"unique", b"collation", b"numInitialChunks", b"zones", b"_presetReshardedChunks", b"collectionUUID")
_ARGUMENTS: Final = ("key", *(name.decode() for name in _OPTIONS))


@command("reshardCollection", admin_only=True, supports_write_concern=True, arguments=_ARGUMENTS)
async def reshard_collection(operation: Operation) -> Reply:
    """Gives a sharded collection another shard key while it is in use."""
    request = operation.request
    namespace, arguments = full_namespace(request), Arguments.of(request)
    if namespace.is_internal:
        raise CommandError(ErrorCode.IllegalOperation, f"can't reshard collections in the {namespace.db} database")
    refuse_repeated_fields(key := arguments.raw(b"key"))
    resharding = {
        "_shardsvrReshardCollection": str(namespace),
        "key": raw_document(key),
        **arguments.present(*_OPTIONS),
    }
    try:
        await _send(operation, namespace.db, resharding)
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}


async def _send(operation: Operation, db: str, resharding: dict[str, Any]) -> None:
    """Have the primary shard reshard a collection.

    The id of the operation is the router's, so that a request that is repeated does not begin an operation again that
    has been aborted in the meantime. Genuine shards do not know that field.
    """
    marked = {**resharding, "reshardingUUID": Binary.from_uuid(uuid4())}
    try:
        await send_to_primary_shard(operation, db, command_body("admin", marked), may_repeat=True)
    except CommandError as error:
        if error.code != UNKNOWN_FIELD:
            raise
        await send_to_primary_shard(operation, db, command_body("admin", resharding), may_repeat=True)


@command("abortReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def abort_reshard_collection(operation: Operation) -> Reply:
    """Aborts the resharding of a collection, if that has not been decided yet."""
    return await _end(operation, {"_configsvrAbortReshardCollection": _namespace(operation), "writeConcern": MAJORITY})


@command("commitReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def commit_reshard_collection(operation: Operation) -> Reply:
    """Has a resharding block writes and end as soon as everything is cloned."""
    return await _end(operation, {"_configsvrCommitReshardCollection": _namespace(operation), "writeConcern": MAJORITY})


@command("cleanupReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def cleanup_reshard_collection(operation: Operation) -> Reply:
    """Aborts the resharding of a collection, if there is one."""
    # The config servers of MongoDB refuse a write concern here.
    return await _end(operation, {"_configsvrCleanupReshardCollection": _namespace(operation)})


async def _end(operation: Operation, command: Mapping[str, Any]) -> Reply:
    try:
        await operation.context.catalog.command(command)
    finally:
        operation.context.routing.forget_collection(_namespace(operation))
    return {}


def _namespace(operation: Operation) -> str:
    return str(full_namespace(operation.request))
