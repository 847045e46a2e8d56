"""Routing tables as they are now, for changes that must not work on an old one."""

from bson.objectid import ObjectId

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.stale_errors import stale_config
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import IGNORED
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def refreshed_table(context: ShardContext, namespace: Namespace, epoch: ObjectId) -> RoutingTable:
    """The routing table of a collection as it is now.

    Raises:
        CommandError: NamespaceNotSharded; StaleConfig, it is another incarnation than the caller's.
    """
    state = context.namespace(str(namespace))
    await context.refresher.reread_collection(state)
    table = state.table
    if table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded")
    if table.collection.epoch != epoch:
        # What came was an epoch, not a version.
        raise stale_config(
            str(namespace),
            IGNORED,
            table.shard_version(state.shard),
            state.shard,
            f"Collection {namespace} changed: its epoch is {table.collection.epoch}, the request's {epoch}",
            may_shard_be_stale=False,
        )
    return table
