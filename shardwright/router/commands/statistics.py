"""Commands that report sizes: ``collStats``, ``dataSize``, ``dbStats``."""

from typing import Any

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.collection_stats import merge_collection_stats, scale_of
from shardwright.router.ddl.database_stats import merge_database_stats
from shardwright.router.ddl.raw_replies import merge_raw
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded
from shardwright.router.operations.routed_sending import connection_strings, read_all_shards, send_to_owning_shards
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_of
from shardwright.router.replies.worst_error import raise_worst
from shardwright.sharding.arguments import named_in_full
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, measurements_of
from shardwright.wire.arguments import clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import append, encode_elements, without


@command("collStats", aliases=("collstats",), reads=True)
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


@command("dataSize", aliases=("datasize",), reads=True)
async def data_size(operation: Operation) -> Reply:
    """The size of the documents in a collection, or in a range of it."""
    request = operation.request
    namespace = named_in_full(request)
    # The command may run on any database; the versions are checked for the collection's.
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


@command("dbStats", aliases=("dbstats",), reads=True)
async def db_stats(operation: Operation) -> Reply:
    """Sizes and object counts of a database, per shard and in total."""
    request = operation.request
    scale = operation.argument(b"scale", 1)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or clamp_int64(scale) < 1:
        raise CommandError(ErrorCode.BadValue, "Scale must be greater than zero")
    replies = await read_all_shards(operation)
    merged = merge_raw(replies, await connection_strings(operation, replies))
    answers = [answer_of(reply) for reply in replies if reply.error is None]
    return merged | merge_database_stats(request.db, answers, scale=clamp_int64(scale))
