"""``insert``, ``update``, ``delete`` and ``findAndModify``."""

from shardwright.router.operations.operation import Operation, PassedOn
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.operations.would_change_owning_shard import (
    CHANGED_OWNER_FIELDS,
    OwnerRefusedError,
    OwnerWouldChangeError,
    execute_in_transaction,
    insert_with_new_owner,
    may_change_owner,
    modify_by_replacement,
    raise_if_refused,
    refuse_or_move,
)
from shardwright.router.operations.write_execution import HIDDEN_FIELDS, execute
from shardwright.router.pipelines.stages import check_update_stages
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.writes.batch import WriteKind
from shardwright.router.writes.outcome import move_refused
from shardwright.router.writes.targeted_batch import message_with_versions
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.writes import target_find_and_modify
from shardwright.sharding.transaction_protocol import CHANGED_OWNER, MAY_CHANGE_OWNER_ELEMENT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, NULL, InvalidBSONError, decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor


@may_run_in_reactor
async def insert(operation: Operation) -> Reply:
    """Inserts documents into a collection, each on the shard that owns its shard key."""
    return await execute(operation, WriteKind.INSERT)


@may_run_in_reactor
async def update(operation: Operation) -> Reply:
    """Updates documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.UPDATE)


@may_run_in_reactor
async def delete(operation: Operation) -> Reply:
    """Deletes documents of a collection on the shards that may hold matches."""
    return await execute(operation, WriteKind.DELETE)


@may_run_in_reactor
async def find_and_modify(operation: Operation) -> Reply:
    """Changes or deletes one document and returns it, on the shard that owns the shard key in the query.

    Raises:
        CommandError: ShardKeyNotFound, the query does not contain the shard key; or the shard failed.
    """
    check_update_stages(operation.request)
    try:
        return await _modify(operation)
    except OwnerWouldChangeError:
        await in_own_task()
        return await execute_in_transaction(operation, find_and_modify)
    except OwnerRefusedError as refused:
        await in_own_task()
        return await modify_by_replacement(operation, refused.change)


@may_run_in_reactor
async def _modify(operation: Operation) -> Reply:
    @may_run_in_reactor
    async def attempt(routing: CollectionRouting) -> tuple[ShardReply, PassedOn]:
        shard = routing.primary
        if routing.table is not None:
            shard = _shard_of_query(operation.request, routing.table)
        elements = b""
        if b"update" in operation.request.fields and await may_change_owner(operation, routing):
            elements = MAY_CHANGE_OWNER_ELEMENT
        message = message_with_versions(operation.request.message, routing.versions_for(shard) + elements)
        reply = await send_to_one(operation, shard, message, may_repeat=operation.is_retryable_write)
        return reply, PassedOn(routing, shard, elements=elements)

    reply, passed_on = await with_routing(operation, operation.namespace, attempt, create_database=True)
    if reply.error is not None and reply.error.code == ErrorCode.WouldChangeOwningShard:
        if operation.transaction is not None:
            raise_if_refused(reply)
        refuse_or_move(operation, move_refused(1))
    if not reply.has(CHANGED_OWNER):
        operation.passed_on = passed_on
        return reply.for_client(HIDDEN_FIELDS)
    await in_own_task()
    await insert_with_new_owner(operation, reply)
    return reply.for_client(HIDDEN_FIELDS | CHANGED_OWNER_FIELDS)


def _shard_of_query(request: Request, table: RoutingTable) -> str:
    query = _optional_object(request, b"query") or EMPTY_DOCUMENT
    collation = _optional_object(request, b"collation")
    try:
        return target_find_and_modify(query, decode_document(collation) if collation else None, table)
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error


def _optional_object(request: Request, name: bytes) -> bytes | None:
    """Return the bytes of an argument, None if it is absent or null."""
    span = request.fields.get(name)
    return None if span is None or span[0] == NULL else request.raw_object(name)
