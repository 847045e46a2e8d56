"""Refreshed routing tables, for changes that must not use a stale one."""

from bson.objectid import ObjectId

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.stale_errors import stale_config
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import IGNORED
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def refreshed_table(context: ShardContext, namespace: Namespace, epoch: ObjectId) -> RoutingTable:
    """Return a collection's refreshed routing table.

    Raises NamespaceNotSharded, or StaleConfig if the request is for another incarnation of the collection.
    """
    state = context.namespace(str(namespace))
    table = await context.refresher.current_table(state)
    if table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded")
    if table.collection.epoch != epoch:
        # The request has an epoch but no version to report as received.
        raise stale_config(
            str(namespace),
            IGNORED,
            table.shard_version(state.shard),
            state.shard,
            f"Collection {namespace} changed: its epoch is {table.collection.epoch}, the request's {epoch}",
            may_shard_be_stale=False,
        )
    return table
