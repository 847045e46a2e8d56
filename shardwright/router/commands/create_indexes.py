"""``createIndexes``: by the collection's only owner, or, of several, by the primary shard, which asks them all."""

from collections.abc import Sequence

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.created_indexes import creation, replies_of_owners
from shardwright.router.ddl.raw_replies import merge_raw
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded, with_routing
from shardwright.router.operations.routed_sending import connection_strings
from shardwright.router.operations.scatter import forwarded, scatter, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.session_cache import NO_USER
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, decode_document, encode_elements


@command("createIndexes", api_versions=("1",), supports_write_concern=True)
async def create_indexes(operation: Operation) -> Reply:
    """Creates indexes on all shards that own a part of the collection, or, as far as possible, on none."""

    async def create(operation: Operation) -> Reply:
        async def attempt(routing: CollectionRouting) -> Sequence[ShardReply]:
            body = creation(operation.request) if len(routing.shards) > 1 and operation.transaction is None else None
            if body is None:
                return await _on_each_owner(operation, routing)
            return await _by_primary_shard(operation, routing, body)

        replies = await with_routing(operation, operation.namespace, attempt, create_database=True)
        return merge_raw(replies, await connection_strings(operation, replies))

    return await on_buckets_if_sharded(operation, create)


async def _on_each_owner(operation: Operation, routing: CollectionRouting) -> Sequence[ShardReply]:
    """Have each owner create them: the only one, all in a transaction, or all that refuse a malformed command."""
    replies = await scatter(
        operation, {shard: forwarded(operation, routing.versions_for(shard)) for shard in sorted(routing.shards)}
    )
    for reply in replies:
        reply.raise_if_stale()
    return replies


async def _by_primary_shard(operation: Operation, routing: CollectionRouting, body: bytes) -> Sequence[ShardReply]:
    """Have the primary shard ask them all. One of MongoDB does not know the command, and is treated as by a mongos."""
    elements = routing.database.element + raw_elements(operation.request, (b"mayBypassWriteBlocking",))
    elements += _session(operation)
    frame = op_msg(append(body, elements), request_id=operation.request.message.request_id)
    reply = await send_to_one(operation, routing.primary, frame)
    if reply.error is not None and reply.error.code == ErrorCode.CommandNotFound:
        return await _on_each_owner(operation, routing)
    reply.raise_for_error()
    return replies_of_owners(reply)


def _session(operation: Operation) -> bytes:
    """The element by which the primary shard knows whose command it is when sessions are killed."""
    lsid = operation.request.raw_object(b"lsid")
    if lsid is None:
        return b""
    session = decode_document(lsid)
    return encode_elements({"lsid": {"id": session.get("id"), "uid": session.get("uid", operation.user or NO_USER)}})
