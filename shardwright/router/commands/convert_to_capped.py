"""``convertToCapped``."""

from shardwright.router.ddl.send import send_to_owning_shards
from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("convertToCapped")
async def convert_to_capped(operation: Operation) -> Reply:
    """Makes an unsharded collection capped."""
    namespace = operation.namespace
    if (await operation.router.routing.collection(namespace)).is_sharded:
        # Were it sharded since this was last read, its shards would refuse the version of an unsharded collection.
        raise CommandError(ErrorCode.IllegalOperation, f"You can't convertToCapped a sharded collection: {namespace}")
    _, (reply,) = await send_to_owning_shards(operation, namespace)
    return reply.for_client()
