"""Commands that shard databases and collections: ``enableSharding``, ``shardCollection``."""

from typing import Any, Final

import bson

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.time_series_options import check_time_series
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.shard_key import refuse_repeated_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, raw_document

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


@command("enableSharding", aliases=("enablesharding",), admin_only=True, supports_write_concern=True)
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
    """The name of a shard given by its name, its connection string or one of its members; itself if there is none."""
    shards = operation.context.shards
    if shards.find(identifier) is None:
        await shards.reload()
    found = shards.find(identifier)
    return identifier if found is None else found.id


@command("shardCollection", aliases=("shardcollection",), admin_only=True, supports_write_concern=True)
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
