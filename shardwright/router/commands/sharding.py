"""Sharding a collection and changing its shard key.

``enableSharding``, ``shardCollection``, ``refineCollectionShardKey``, ``reshardCollection`` and the commands that
end a resharding early; ``repairShardedCollectionChunksHistory``.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import bson
from bson.binary import Binary

from shardwright.router.ddl.coordinated import command_body
from shardwright.router.ddl.merged_replies import check_time_series
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.scatter import send_to_one, send_to_primary_shard
from shardwright.router.placement.routing_info import DatabaseRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.namespace import full_namespace, named_in_full
from shardwright.sharding.shard_key import refuse_repeated_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import UNKNOWN_FIELD, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, raw_document
from shardwright.wire.request import raw_elements

MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}
"""The write concern of changes to the catalog."""

_SHARDING_OPTIONS: Final = (
    b"unique",
    b"numInitialChunks",
    b"presplitHashedZones",
    b"collation",
    b"timeseries",
    b"implicitlyCreateIndex",
    b"enforceUniquenessCheck",
    b"collectionUUID",
)


async def enable_sharding(operation: Operation) -> Reply:
    """Creates a database, which makes it ready for sharded collections."""
    request = operation.request
    db = Arguments.of(request).namespace(request.name.encode())
    creation: dict[str, Any] = {"_configsvrCreateDatabase": db, "writeConcern": MAJORITY}
    if b"primaryShard" in request.fields:
        creation["primaryShardId"] = await _shard_id(operation, Arguments.of(request).string(b"primaryShard"))
    await operation.context.catalog.command(creation)
    operation.context.routing.forget_database(db)
    return {}


async def _shard_id(operation: Operation, identifier: str) -> str:
    """Resolve a shard's name, connection string or member to its name; unknown identifiers stay unchanged."""
    shards = operation.context.shards
    if shards.find(identifier) is None:
        await shards.reload()
    found = shards.find(identifier)
    return identifier if found is None else found.id


async def shard_collection(operation: Operation) -> Reply:
    """Shards a collection by a key; the primary shard of its database does it."""
    request = operation.request
    namespace = full_namespace(request)
    key = Arguments.of(request).raw(b"key")
    refuse_repeated_fields(key)
    check_time_series(request)
    if namespace.is_admin or namespace.is_local:
        raise CommandError(ErrorCode.IllegalOperation, f"can't shard collections in the {namespace.db} database")
    creation = {
        "_shardsvrCreateCollection": namespace.collection,
        "shardKey": raw_document(key),
        **Arguments.of(request).present(*_SHARDING_OPTIONS),
        "writeConcern": MAJORITY,
        "$db": namespace.db,
    }
    body, privilege = bson.encode(creation), raw_elements(request, (b"mayBypassWriteBlocking",))

    async def attempt(database: DatabaseRouting) -> None:
        frame = op_msg(append(body, database.element + privilege), request_id=next_request_id())
        reply = await send_to_one(operation, database.primary, frame, may_repeat=True)
        reply.raise_for_error()

    try:
        await with_database(operation, namespace.db, attempt, create=True)
    finally:
        operation.context.routing.forget_collection(str(namespace))
        operation.context.routing.forget_collection(str(namespace.buckets))
    return {"collectionsharded": str(namespace)}


_REFINING_OPTIONS: Final = (b"collectionUUID", b"enforceUniquenessCheck")


async def refine_collection_shard_key(operation: Operation) -> Reply:
    """Adds fields to the end of a collection's shard key; no document moves."""
    request = operation.request
    namespace = full_namespace(request)
    refuse_repeated_fields(key := Arguments.of(request).raw(b"key"))
    refinement = {
        "_shardsvrRefineCollectionShardKey": namespace.collection,
        "newShardKey": raw_document(key),
        **Arguments.of(request).present(*_REFINING_OPTIONS),
    }
    try:
        await send_to_primary_shard(operation, namespace.db, command_body(namespace.db, refinement))
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}


_RESHARDING_OPTIONS: Final = (
    b"unique",
    b"collation",
    b"numInitialChunks",
    b"zones",
    b"_presetReshardedChunks",
    b"collectionUUID",
)
RESHARDING_ARGUMENTS: Final = ("key", *(name.decode() for name in _RESHARDING_OPTIONS))


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
        **arguments.present(*_RESHARDING_OPTIONS),
    }
    try:
        await _send(operation, namespace.db, resharding)
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}


async def _send(operation: Operation, db: str, resharding: dict[str, Any]) -> None:
    """Send a resharding command to the primary shard.

    The router generates the id of the operation, so that a repeated request does not restart an operation that was
    aborted in between. Genuine shards do not know that field.
    """
    marked = {**resharding, "reshardingUUID": Binary.from_uuid(uuid4())}
    try:
        await send_to_primary_shard(operation, db, command_body("admin", marked), may_repeat=True)
    except CommandError as error:
        if error.code != UNKNOWN_FIELD:
            raise
        await send_to_primary_shard(operation, db, command_body("admin", resharding), may_repeat=True)


async def abort_reshard_collection(operation: Operation) -> Reply:
    """Aborts the resharding of a collection, if that has not been decided yet."""
    return await _end(operation, {"_configsvrAbortReshardCollection": _namespace(operation), "writeConcern": MAJORITY})


async def commit_reshard_collection(operation: Operation) -> Reply:
    """Makes a resharding block writes and finish as soon as everything is cloned."""
    return await _end(operation, {"_configsvrCommitReshardCollection": _namespace(operation), "writeConcern": MAJORITY})


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


async def repair_sharded_collection_chunks_history(operation: Operation) -> Reply:
    """Repairs the histories of chunks, without which snapshot reads of a collection fail."""
    namespace = str(named_in_full(operation.request))
    repair: dict[str, Any] = {"_configsvrRepairShardedCollectionChunksHistory": namespace, "writeConcern": MAJORITY}
    if Arguments.of(operation.request).value(b"force") is True:
        repair["force"] = True
    await operation.context.catalog.command(repair)
    operation.context.routing.forget_collection(namespace)
    return {}
