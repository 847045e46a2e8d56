"""``repairShardedCollectionChunksHistory``: begin the histories of a collection's chunks anew."""

from typing import Any

from shardwright.router.commands.command_registry import command
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import named_in_full
from shardwright.wire.arguments import Arguments


@command("repairShardedCollectionChunksHistory", admin_only=True)
async def repair_sharded_collection_chunks_history(operation: Operation) -> Reply:
    """Repairs the histories of chunks, without which snapshot reads of a collection fail."""
    namespace = str(named_in_full(operation.request))
    repair: dict[str, Any] = {"_configsvrRepairShardedCollectionChunksHistory": namespace, "writeConcern": MAJORITY}
    if Arguments.of(operation.request).value(b"force") is True:
        repair["force"] = True
    await operation.context.catalog.command(repair)
    operation.context.routing.forget_collection(namespace)
    return {}
