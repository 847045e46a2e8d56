"""Giving a sharded collection another shard key: ``reshardCollection``, and the commands that end it early."""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import full_namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
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
    resharding = {
        "_shardsvrReshardCollection": str(namespace),
        "key": raw_document(arguments.raw(b"key")),
        **arguments.present(*_OPTIONS),
    }
    try:
        await send_to_primary_shard(operation, namespace.db, command_body("admin", resharding), may_repeat=True)
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}


@command("abortReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def abort_reshard_collection(operation: Operation) -> Reply:
    """Aborts the resharding of a collection, if that has not been decided yet."""
    return await _end(operation, "_configsvrAbortReshardCollection")


@command("commitReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def commit_reshard_collection(operation: Operation) -> Reply:
    """Has a resharding block writes and end as soon as everything is cloned."""
    return await _end(operation, "_configsvrCommitReshardCollection")


@command("cleanupReshardCollection", admin_only=True, supports_write_concern=True, arguments=())
async def cleanup_reshard_collection(operation: Operation) -> Reply:
    """Aborts the resharding of a collection, if there is one."""
    return await _end(operation, "_configsvrCleanupReshardCollection")


async def _end(operation: Operation, name: str) -> Reply:
    namespace = str(full_namespace(operation.request))
    try:
        await operation.context.catalog.command({name: namespace, "writeConcern": MAJORITY})
    finally:
        operation.context.routing.forget_collection(namespace)
    return {}
