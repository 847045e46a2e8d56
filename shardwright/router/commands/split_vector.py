"""``splitVector`` of unsharded collections; for others the router sends it to shards itself."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import named_in_full
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("splitVector")
async def split_vector(operation: Operation) -> Reply:
    """Finds keys at which an unsharded collection could be split."""

    async def attempt(routing: CollectionRouting) -> Reply:
        routing = await operation.context.routing.confirmed_if_sharded(routing)
        if routing.is_sharded:
            raise CommandError(ErrorCode.IllegalOperation, "can't do command: splitVector on sharded collection")
        frame = forwarded(operation, routing.versions_for(routing.primary))
        return (await send_to_one(operation, routing.primary, frame, may_repeat=True)).for_client()

    return await with_routing(operation, str(named_in_full(operation.request)), attempt)
