"""``convertToCapped``."""

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.routing.retry import with_routing
from shardwright.router.routing.routing_cache import CollectionRouting
from shardwright.router.sending.scatter import forwarded, send_to_one
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("convertToCapped")
async def convert_to_capped(operation: Operation) -> Reply:
    """Makes an unsharded collection capped."""

    async def attempt(routing: CollectionRouting) -> Reply:
        # Were it sharded since this was last read, its shard would refuse the version of an unsharded collection.
        if routing.is_sharded:
            message = f"You can't convertToCapped a sharded collection: {routing.namespace}"
            raise CommandError(ErrorCode.IllegalOperation, message)
        frame = forwarded(operation, routing.versions_for(routing.primary))
        return (await send_to_one(operation, routing.primary, frame)).for_client()

    return await with_routing(operation, operation.namespace, attempt)
