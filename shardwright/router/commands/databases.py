"""Commands on databases: list and drop them, move their primary shard, report sizes."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shardwright.daemon.users import CLUSTER
from shardwright.router.access.needs import Need, may_see_database
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.ddl.merged_replies import (
    merge_collection_stats,
    merge_database_lists,
    merge_database_stats,
    merge_raw,
    scale_of,
)
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded
from shardwright.router.operations.scatter import (
    connection_strings,
    read_all_shards,
    send_to_owning_shards,
    send_to_primary_shard,
)
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import answer_of, raise_worst
from shardwright.sharding.namespace import named_in_full
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, measurements_of
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.rawbson import append, encode_elements, without
from shardwright.wire.read_preference import PRIMARY_PREFERRED
from shardwright.wire.request import is_valid_database_name

_SEES_ALL = Need("listDatabases", CLUSTER)


async def list_databases(operation: Operation) -> Reply:
    """The databases of the cluster with their sizes. Each shard applies the client's filter to its own entries."""
    is_visible = _visible(operation)
    replies = await read_all_shards(operation, also=(CONFIG_SHARD,), preference=PRIMARY_PREFERRED)
    raise_worst(replies)
    return merge_database_lists(
        {reply.shard_id: reply.get(b"databases") for reply in replies},
        names_only=Arguments.of(operation.request).boolean(b"nameOnly"),
        is_visible=is_visible,
    )


def _visible(operation: Operation) -> Callable[[str], bool]:
    """Return the predicate for the databases to list.

    Raises:
        CommandError: Unauthorized, the client requests all databases and may see only some.
    """
    access = operation.context.access
    if access is None:
        return lambda _: True
    privileges = access.privileges_of(operation.client)
    sees_all = _SEES_ALL.is_met(privileges)
    arguments = Arguments.of(operation.request)
    is_filtered = arguments.boolean(b"authorizedDatabases", default=not sees_all)
    if not is_filtered and not sees_all:
        raise CommandError(ErrorCode.Unauthorized, "Insufficient permissions to list all databases")
    return partial(may_see_database, privileges) if is_filtered else lambda _: True


_NOT_ONE = 5255100


async def drop_database(operation: Operation) -> Reply:
    """Drops a database with all its collections; one that does not exist is fine."""
    db = operation.request.db
    arguments = Arguments.of(operation.request)
    if db in ("config", "admin"):
        raise CommandError(ErrorCode.IllegalOperation, f"Cannot drop the {db} database")
    wanted = arguments.maybe_integer(b"dropDatabase", minimum=None)
    if wanted is None:
        raise missing_field("dropDatabase.dropDatabase")
    if wanted != 1:
        raise CommandError(_NOT_ONE, "Have to pass 1 as 'drop' parameter")
    body = command_body(db, {"_shardsvrDropDatabase": 1})
    try:
        return answer_of(await send_to_primary_shard(operation, db, body, may_repeat=True))
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return {"info": "database does not exist"}
    finally:
        operation.context.routing.forget_database(db)


_FIXED: Final = frozenset({"admin", "config", "local"})


async def move_primary(operation: Operation) -> Reply:
    """Makes another shard the primary shard of a database, and moves its unsharded collections there."""
    request = operation.request
    db = Arguments.of(request).namespace(request.name.encode())
    if not is_valid_database_name(db):
        raise CommandError(ErrorCode.InvalidNamespace, f"invalid db name specified: {db}")
    if db in _FIXED:
        raise CommandError(ErrorCode.InvalidOptions, f"Can't move primary for {db} database")
    identifier = Arguments.of(request).string(b"to")
    if not identifier:
        raise CommandError(ErrorCode.InvalidOptions, "you have to specify where you want to move it")
    await operation.context.shards.reload()
    shard = operation.context.shards.find(identifier)
    if shard is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {identifier} not found")
    body = command_body("admin", {"_shardsvrMovePrimary": db, "to": shard.id})
    try:
        await send_to_primary_shard(operation, db, body, may_repeat=True)
    finally:
        operation.context.routing.forget_database(db)
    return {}


async def coll_stats(operation: Operation) -> Reply:
    """Sizes, indexes and storage of a collection, per shard and in total."""
    return await on_buckets_if_sharded(operation, _coll_stats)


async def _coll_stats(operation: Operation) -> Reply:
    namespace = operation.namespace
    scale = scale_of(operation.argument(b"scale"))
    try:
        routing, replies = await send_to_owning_shards(
            operation,
            namespace,
            without(operation.request.body, (b"scale", IS_TIME_SERIES_NAMESPACE)),
            preference=operation.read_preference,
            may_repeat=True,
        )
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return {"sharded": False, **merge_collection_stats(namespace, {}, scale=scale, chunks=1)}
    raise_worst(replies)
    table = routing.table
    placement: dict[str, Any] = {"sharded": False, "primary": routing.primary}
    chunks = 1
    if table is not None:
        placement = {"sharded": True}
        chunks = sum(table.chunk_count_of(shard) for shard in table.shards)
    shards = {reply.shard_id: answer_of(reply) for reply in replies}
    named = namespace if table is None or table.collection.time_series is None else measurements_of(namespace)
    return placement | merge_collection_stats(named, shards, scale=scale, chunks=chunks)


async def data_size(operation: Operation) -> Reply:
    """The size of the documents in a collection, or in a range of it."""
    request = operation.request
    namespace = named_in_full(request)
    # The command may run on any database; the versions checked are the collection's.
    body = append(without(request.body, (b"$db",)), encode_elements({"$db": namespace.db}))
    _, replies = await send_to_owning_shards(
        operation, str(namespace), body, preference=operation.read_preference, may_repeat=True
    )
    raise_worst(replies)
    return {
        "size": float(sum(reply.get(b"size", 0) for reply in replies)),
        "numObjects": float(sum(reply.get(b"numObjects", 0) for reply in replies)),
        "millis": int(sum(reply.get(b"millis", 0) for reply in replies)),
    }


async def db_stats(operation: Operation) -> Reply:
    """Sizes and object counts of a database, per shard and in total."""
    request = operation.request
    scale = operation.argument(b"scale")
    if scale is None:
        scale = 1
    if isinstance(scale, bool) or not isinstance(scale, int | float) or clamp_int64(scale) < 1:
        raise CommandError(ErrorCode.BadValue, "Scale must be greater than zero")
    replies = await read_all_shards(operation)
    merged = merge_raw(replies, await connection_strings(operation, replies))
    answers = [answer_of(reply) for reply in replies if reply.error is None]
    return merged | merge_database_stats(request.db, answers, scale=clamp_int64(scale))
