"""``findAndModify``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.operations.write_execution import HIDDEN_FIELDS
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.router.writes.messages import message_with_versions
from shardwright.router.writes.owning_shard import move_refused
from shardwright.router.writes.targeting import target_find_and_modify
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, NULL, InvalidBSONError, decode_document
from shardwright.wire.request import Request


@command("findAndModify", aliases=("findandmodify",), writes=True, api_versions=("1",))
async def find_and_modify(operation: Operation) -> Reply:
    """Changes or deletes one document and returns it, on the shard that owns the shard key in the query.

    Raises:
        CommandError: ShardKeyNotFound, the query does not fix the shard key; IllegalOperation, the document would
            belong to another shard.
    """

    async def attempt(routing: CollectionRouting) -> bytes:
        shard = routing.primary
        if routing.table is not None:
            shard = _shard_of_query(operation.request, routing.table)
        reply = await send_to_one(
            operation,
            shard,
            message_with_versions(operation.request.message, routing.versions_for(shard)),
            may_repeat=operation.is_retryable_write,
        )
        if reply.error is not None and reply.error.code == ErrorCode.WouldChangeOwningShard:
            raise move_refused(1)
        return reply.for_client(HIDDEN_FIELDS)

    return await with_routing(operation, operation.namespace, attempt, create_database=True)


def _shard_of_query(request: Request, table: RoutingTable) -> str:
    query = _optional_object(request, b"query") or EMPTY_DOCUMENT
    collation = _optional_object(request, b"collation")
    try:
        return target_find_and_modify(query, decode_document(collation) if collation else None, table)
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error


def _optional_object(request: Request, name: bytes) -> bytes | None:
    """The bytes of an argument, None if it is absent or null.

    Raises:
        CommandError: TypeMismatch, it is something else.
    """
    span = request.fields.get(name)
    return None if span is None or span[0] == NULL else request.raw_object(name)
