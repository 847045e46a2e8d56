"""``count``: how many documents match."""

from collections.abc import Mapping
from typing import Any

import bson

from shardwright.router.commands.command_registry import command
from shardwright.router.joins.any_aggregate import aggregate_view
from shardwright.router.operations.missing import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, scatter
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.count import CountArguments
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.reads.read_concern import READ_CONCERN, is_snapshot
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.reads.view_aggregate import COUNTED
from shardwright.router.replies.cursor_reply import first_batch
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError, latest_operation_time
from shardwright.router.replies.worst_error import raise_worst
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document


@command("count", reads=True, api_versions=("1",))
async def count(operation: Operation) -> Reply:
    """Counts the documents that match a filter."""
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
        operation.operation_time = latest_operation_time(replies)
        counts = {reply.shard_id: int(reply.get(b"n", 0)) for reply in replies}
        return {"shards": counts, "n": arguments.total(list(counts.values()))}

    nothing = {"shards": {}, "n": 0}
    try:
        return await unless_missing(operation, with_routing(operation, operation.namespace, attempt), nothing)
    except ShardedViewError as error:
        if is_snapshot(operation.request):
            raise _no_snapshots(operation.argument(READ_CONCERN)) from error
        documents = first_batch(await aggregate_view(operation, error))
        return {"n": decode_document(documents[0])[COUNTED] if documents else 0}


def _no_snapshots(concern: Mapping[str, Any]) -> CommandError:
    """The error for a view, whose aggregation could read a snapshot; a mongod itself refuses to count a collection."""
    text = document_text(bson.encode({"readConcern": {**concern, "provenance": "clientSupplied"}}))
    return CommandError(
        ErrorCode.InvalidOptions,
        f"Command count does not support {text} :: caused by :: read concern snapshot not supported",
    )
