"""Routing tables as they are now, for changes that must not work on an old one."""

from bson.objectid import ObjectId

from shardd.shard import Shard
from sharding.namespace import Namespace
from sharding.routing_table import RoutingTable
from wire.error_codes import ErrorCode
from wire.errors import CommandError


async def refreshed_table(shard: Shard, namespace: Namespace, epoch: ObjectId) -> RoutingTable:
    """The routing table of a collection as it is now.

    Raises:
        CommandError: NamespaceNotSharded; StaleEpoch, it is another incarnation than the caller's.
    """
    state = shard.namespace(str(namespace))
    await shard.refresher.refresh_collection(state)
    table = state.table
    if table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded")
    if table.collection.epoch != epoch:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"Collection {namespace} changed: its epoch is {table.collection.epoch}, the request's {epoch}",
        )
    return table
