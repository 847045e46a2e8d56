"""Commands on plan caches and index filters, of which every mongod has its own."""

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.promoted_reply import merge_promoted
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_owning_shards
from shardwright.router.replies.own_reply import Reply


@command("planCacheClear")
async def plan_cache_clear(operation: Operation) -> Reply:
    """Drops cached plans of a collection."""
    return await _on_owning_shards(operation)


@command("planCacheListFilters", reads=True)
async def plan_cache_list_filters(operation: Operation) -> Reply:
    """The index filters of a collection."""
    return await _on_owning_shards(operation)


@command("planCacheSetFilter")
async def plan_cache_set_filter(operation: Operation) -> Reply:
    """Sets the indexes that the planner considers for a query shape."""
    return await _on_owning_shards(operation)


@command("planCacheClearFilters")
async def plan_cache_clear_filters(operation: Operation) -> Reply:
    """Removes the index filter of a query shape, or all of a collection."""
    return await _on_owning_shards(operation)


async def _on_owning_shards(operation: Operation) -> Reply:
    _, replies = await send_to_owning_shards(
        operation, operation.namespace, preference=operation.read_preference, may_repeat=True
    )
    return merge_promoted(replies)
