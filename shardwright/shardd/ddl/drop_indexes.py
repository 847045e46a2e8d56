"""``dropIndexes`` on all shards that have a collection (``_shardsvrDropIndexes``)."""

from typing import Any

import trio

from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.primary_shard import check_is_primary_shard
from shardwright.shardd.local_mongod.local_collections import change
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def drop_indexes_everywhere(context: ShardContext, namespace: Namespace, index: object) -> dict[str, Any]:
    """Drop indexes on every shard that owns chunks; a shard may lack them if another one has them.

    Args:
        context: the context of the database's primary shard, which is this one.
        namespace: the collection.
        index: the argument of ``dropIndexes``: a name, a key, a list of names, or ``*``.

    Raises:
        CommandError: IndexNotFound, no shard has them; LockBusy; or the error of a shard.
    """
    async with context.ddl_locks.hold_all([namespace.db, str(namespace)]):
        await check_is_primary_shard(context, namespace)
        catalog = await context.catalog()
        table = await catalog.read(read_routing(str(namespace)))
        drop = {"dropIndexes": namespace.collection, "index": index}
        if table is None and not namespace.is_time_series_buckets:
            table = await catalog.read(read_routing(str(namespace.buckets)))
            if table is not None:
                namespace = namespace.buckets
                drop = {**drop, "dropIndexes": namespace.collection, IS_TIME_SERIES_NAMESPACE.decode(): True}
        shards = await catalog.shards()
        if table is None:
            me = context.require_identity().shard_name
            return {"raw": {shards[me].host: _without_times(await change(context.mongod, namespace, drop))}}
        replies = await _drop_on_owners(context, namespace, drop, table)
    return {"raw": {shards[shard_id].host: reply for shard_id, reply in sorted(replies.items())}}


async def _drop_on_owners(
    context: ShardContext, namespace: Namespace, drop: dict[str, Any], table: RoutingTable
) -> dict[str, dict[str, Any]]:
    replies: dict[str, dict[str, Any]] = {}
    errors: dict[str, CommandError] = {}

    async def send(shard_id: str) -> None:
        versioned = {**drop, "shardVersion": table.shard_version(shard_id).to_document()}
        try:
            replies[shard_id] = _without_times(await send_to_shard(context, shard_id, namespace.db, versioned))
        except CommandError as error:
            errors[shard_id] = error
            replies[shard_id] = error.reply()

    async with trio.open_nursery() as nursery:
        for shard_id in table.shards:
            nursery.start_soon(send, shard_id)
    for shard_id in sorted(errors):
        error = errors[shard_id]
        if error.code != ErrorCode.IndexNotFound or len(errors) == len(table.shards):
            raise error
    return replies


def _without_times(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without its gossiped times."""
    return {name: value for name, value in reply.items() if name not in ("$clusterTime", "operationTime")}
