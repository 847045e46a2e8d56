"""``convertToCapped``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("convertToCapped", supports_write_concern=True)
async def convert_to_capped(operation: Operation) -> Reply:
    """Makes an unsharded collection capped."""

    async def attempt(routing: CollectionRouting) -> Reply:
        # If it has been sharded since this was read, its shard refuses the version of an unsharded collection. If it is
        # no longer sharded, no shard would say so.
        routing = await operation.context.routing.confirmed_if_sharded(routing)
        if routing.is_sharded:
            message = f"You can't convertToCapped a sharded collection: {routing.namespace}"
            raise CommandError(ErrorCode.IllegalOperation, message)
        frame = forwarded(operation, routing.versions_for(routing.primary))
        return (await send_to_one(operation, routing.primary, frame)).for_client()

    return await with_routing(operation, operation.namespace, attempt)
