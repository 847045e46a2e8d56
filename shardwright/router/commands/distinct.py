"""``distinct``: the different values of a field."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.router.commands.command_registry import command
from shardwright.router.joins.any_aggregate import aggregate_view
from shardwright.router.operations.missing import unless_missing
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, scatter, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.distinct import merge_values, merging_aggregate
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.reads.read_concern import is_snapshot
from shardwright.router.reads.targeting import collation_unless_simple, shards_for_read
from shardwright.router.reads.view_aggregate import DISTINCT
from shardwright.router.replies.cursor_reply import CursorReply, first_batch
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardedViewError, ShardReply, latest_operation_time
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, element, index

_NOT_IN_TRANSACTIONS: Final = (
    "Cannot run 'distinct' on a sharded collection in a multi-document transaction. Please see "
    "http://dochub.mongodb.org/core/transaction-distinct for a recommended alternative."
)


@command("distinct", reads=True)
async def distinct(operation: Operation) -> Reply:
    """Returns the different values that a field has in matching documents."""
    request = operation.request
    query = Arguments.of(request, "distinct").maybe_raw(b"query")
    collation = collation_of(request)

    async def attempt(routing: CollectionRouting) -> Reply:
        if routing.is_sharded and operation.transaction is not None:
            raise CommandError(ErrorCode.OperationNotSupportedInTransaction, _NOT_IN_TRANSACTIONS)
        if routing.is_sharded and is_snapshot(request):
            raise CommandError(
                ErrorCode.InvalidOptions,
                'readConcern level "snapshot" prohibited for "distinct" command on sharded collection',
            )
        shards = shards_for_read(routing, EMPTY_DOCUMENT if query is None else query, collation)
        frames = {shard: forwarded(operation, routing.versions_for(shard)) for shard in shards}
        if len(frames) == 1:
            [(shard, frame)] = frames.items()
            reply = await send_to_one(operation, shard, frame, preference=operation.read_preference, may_repeat=True)
            return reply.for_client()
        replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
        raise_worst(replies)
        operation.operation_time = latest_operation_time(replies)
        arrays = [_values(reply) for reply in replies]
        collating = collation_unless_simple(routing, collation)
        merged = merge_values(arrays) if collating is None else await _merge_on(operation, shards[0], arrays, collating)
        return operation.raw_reply(element(b"values", ARRAY, merged))

    try:
        return await unless_missing(operation, with_routing(operation, operation.namespace, attempt), {"values": []})
    except ShardedViewError as error:
        documents = first_batch(await aggregate_view(operation, error))
        return operation.raw_reply(element(b"values", ARRAY, _gathered(documents)))


async def _merge_on(operation: Operation, shard: str, arrays: Sequence[bytes], collation: Mapping[str, Any]) -> bytes:
    """The raw array of all values, merged under a collation by a mongod of one of the shards.

    Raises:
        CommandError: the shard failed, or all values together are too large.
    """
    command_body = merging_aggregate(arrays, collation, operation.request.db)
    frame = op_msg(command_body, request_id=next_request_id())
    reply = await operation.context.sender.send(shard, frame, may_repeat=True)
    reply.raise_for_error()
    documents = CursorReply.of(reply).documents()
    if not documents:
        return EMPTY_DOCUMENT
    values = index(documents[0])[b"values"]
    return documents[0][values[2] : values[3]]


def _gathered(documents: Sequence[bytes]) -> bytes:
    """The raw array of values that an aggregation collected, empty if there were none."""
    if not documents:
        return EMPTY_DOCUMENT
    values = index(documents[0])[DISTINCT.encode()]
    return documents[0][values[2] : values[3]]


def _values(reply: ShardReply) -> bytes:
    span = reply.fields.get(b"values")
    if span is None or span[0] != ARRAY:
        raise RemoteProtocolError(f"{reply.shard_id} answered distinct without values")
    return reply.body[span[2] : span[3]]
