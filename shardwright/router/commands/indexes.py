"""Commands on the indexes of a collection.

``createIndexes`` is sent to the collection's only owner. With several owners, it is sent to the primary shard, which
coordinates them.
"""

from collections.abc import Sequence

from shardwright.router.commands.collections import check_cursor
from shardwright.router.ddl.coordinated import coordinated_command, creation, replies_of_owners
from shardwright.router.ddl.merged_replies import merge_raw
from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded, with_routing
from shardwright.router.operations.scatter import (
    connection_strings,
    forwarded,
    scatter,
    send_to_one,
    send_to_owning_shards,
    send_to_primary_shard,
)
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, wrong_type
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, append, decode_document, encode_elements
from shardwright.wire.request import Request, raw_elements


async def drop_indexes(operation: Operation) -> Reply:
    """Drops indexes on all shards that own a part of the collection."""
    request = operation.request
    Namespace(request.db, request.collection).check_valid()
    if request.db in ("config", "admin"):
        raise CommandError(
            ErrorCode.IllegalOperation, f"Cannot drop indexes in '{request.db}' database in sharded cluster"
        )
    # Raised here because the shard's errors would name its own command.
    index = request.fields.get(b"index")
    if index is None:
        raise missing_field("dropIndexes.index")
    if index[0] not in (STRING, ARRAY, OBJECT):
        raise wrong_type("dropIndexes.index", index[0], "string", "object")
    reply = await send_to_primary_shard(operation, request.db, coordinated_command(request, "_shardsvrDropIndexes"))
    return reply.for_client()


async def list_indexes(operation: Operation) -> Reply:
    """The indexes of a collection on the shard that owns its lowest chunk."""
    namespace = operation.namespace

    async def list_on_shard(operation: Operation) -> Reply:
        async def attempt(routing: CollectionRouting) -> bytes:
            shard = _shard_of_lowest_chunk(routing)
            frame = forwarded(operation, routing.versions_for(shard))
            return await open_on_one_shard(operation, shard, frame, preference=operation.read_preference)

        return await with_routing(operation, operation.namespace, attempt)

    try:
        return await on_buckets_if_sharded(operation, list_on_shard)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        _check_list_arguments(operation.request)
        raise CommandError(error.code, f"ns does not exist: {namespace}") from error


def _check_list_arguments(request: Request) -> None:
    """Refuse the arguments that a shard would refuse, for a collection that does not exist."""
    arguments = Arguments.of(request)
    flags = (b"includeBuildUUIDs", b"includeIndexBuildInfo")
    arguments.refuse_unknown((b"listIndexes", b"cursor", *flags))
    for name in flags:
        arguments.boolean(name, strictness=Strictness.BOOL)
    check_cursor(arguments)


async def set_index_commit_quorum(operation: Operation) -> Reply:
    """Changes how many members must have built an index before it is committed."""
    arguments = Arguments.of(operation.request)
    arguments.strings(b"indexNames")
    arguments.required_value(b"commitQuorum")
    _, replies = await send_to_owning_shards(operation, operation.namespace)
    return merge_raw(replies, await connection_strings(operation, replies))


def _shard_of_lowest_chunk(routing: CollectionRouting) -> str:
    table = routing.table
    return routing.primary if table is None else table.shard_for_key(table.key_pattern.global_min_bytes())


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
    """Send the command to each owner: a single owner, a transaction, or a malformed command for them to refuse."""
    replies = await scatter(
        operation, {shard: forwarded(operation, routing.versions_for(shard)) for shard in sorted(routing.shards)}
    )
    for reply in replies:
        reply.raise_if_stale()
    return replies


async def _by_primary_shard(operation: Operation, routing: CollectionRouting, body: bytes) -> Sequence[ShardReply]:
    """Send the command to the primary shard to coordinate. A mongod without that command is handled as by mongos."""
    elements = routing.database.element + raw_elements(operation.request, (b"mayBypassWriteBlocking",))
    elements += _session(operation)
    frame = op_msg(append(body, elements), request_id=operation.request.message.request_id)
    reply = await send_to_one(operation, routing.primary, frame)
    if reply.error is not None and reply.error.code == ErrorCode.CommandNotFound:
        return await _on_each_owner(operation, routing)
    reply.raise_for_error()
    return replies_of_owners(reply)


def _session(operation: Operation) -> bytes:
    """Return the session element by which the primary shard ends the command when the session is killed."""
    lsid = operation.request.raw_object(b"lsid")
    if lsid is None:
        return b""
    session = decode_document(lsid)
    return encode_elements({"lsid": {"id": session.get("id"), "uid": session.get("uid", operation.user or NO_USER)}})
