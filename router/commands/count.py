"""``count``: how many documents match."""

from router.commands.aggregate import aggregate_view
from router.operation import Operation
from router.reads.count import CountArguments
from router.reads.cursor_reply import first_batch
from router.reads.find_arguments import collation_of
from router.reads.missing import unless_missing
from router.reads.targeting import shards_for_read
from router.reads.view_aggregate import COUNTED
from router.registry import Reply, command
from router.retry import with_routing
from router.routing_cache import CollectionRouting
from router.scatter import forwarded, raise_worst, scatter
from router.shard_reply import ShardedViewError
from wire.rawbson import decode_document


@command("count", reads=True, api_versions=("1",))
async def count(operation: Operation) -> Reply:
    """Counts the documents that match a filter, on each shard and in all."""
    arguments = CountArguments.parse(operation.request)
    collation = collation_of(operation.request)
    body = arguments.body_for_shards(operation.request.body)

    async def attempt(routing: CollectionRouting) -> Reply:
        shards = shards_for_read(routing, arguments.query, collation)
        replies = await scatter(
            operation,
            {shard: forwarded(operation, routing.versions_for(shard), body) for shard in shards},
            preference=operation.read_preference,
            may_repeat=True,
        )
        raise_worst(replies)
        counts = {reply.shard_id: int(reply.get(b"n", 0)) for reply in replies}
        return {"shards": counts, "n": arguments.total(list(counts.values()))}

    nothing = {"shards": {}, "n": 0}
    try:
        return await unless_missing(operation, with_routing(operation, operation.namespace, attempt), nothing)
    except ShardedViewError as error:
        documents = first_batch(await aggregate_view(operation, error))
        return {"n": decode_document(documents[0])[COUNTED] if documents else 0}
