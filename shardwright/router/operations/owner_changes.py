"""Updates that change a shard key so that the document belongs to another shard.

In a transaction, the shard that has the document executes the update and hands over the result, which the router then
inserts where it belongs (see `sharding.owner_changes`). A retryable write does the same in a transaction of the router
(`retryable_write_transaction`).
"""

from typing import Any, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.session_fields import AUTOCOMMIT_ELEMENT
from shardwright.router.writes.messages import message_with_versions
from shardwright.sharding.owner_changes import CHANGED_OWNER, MAY_CHANGE_OWNER, document_of_other_owner
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import append, encode_document, raw_document
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import may_run_in_reactor

CHANGED_OWNER_FIELDS: Final = frozenset({CHANGED_OWNER})

_NO_HISTORY: Final = -1
_SECOND_ID: Final = (
    "Failed to update document's shard key field. There is either an orphan for this document or _id for this "
    "collection is not globally unique."
)


@may_run_in_reactor
async def may_change_owner(operation: Operation, routing: CollectionRouting) -> bool:
    """Whether an update may ask the shards that own a collection to hand over documents that no longer belong to them.

    Raises:
        CommandError: ShardNotFound; FailedToSatisfyReadPreference.
    """
    if operation.transaction is None or routing.table is None:
        return False
    understands = operation.context.shards.understands
    for shard in routing.shards:
        if not await understands(shard, MAY_CHANGE_OWNER.decode(), PRIMARY):
            return False
    return True


async def insert_with_new_owner(operation: Operation, reply: ShardReply) -> None:
    """Insert the document that a shard has handed over, if it has, on the shard that owns its new key.

    Raises:
        CommandError: it cannot be inserted.
    """
    document = document_of_other_owner(reply.body, reply.fields) if reply.error is None else None
    if document is None:
        return
    request = operation.request
    elements: dict[str, Any] = {
        "insert": operation.namespace.partition(".")[2],
        "documents": [raw_document(document)],
        "stmtIds": [_NO_HISTORY],
    }
    if b"bypassDocumentValidation" in request.fields:
        elements["bypassDocumentValidation"] = request.get(b"bypassDocumentValidation")
    body = append(encode_document({**elements, "$db": request.db}), AUTOCOMMIT_ELEMENT)
    part = operation.part(Request(OpMsg(op_msg(body, request_id=request.message.request_id))))

    async def attempt(routing: CollectionRouting) -> ShardReply:
        shard = routing.primary
        if routing.table is not None:
            shard = routing.table.shard_for_key(routing.table.key_pattern.key_bytes_of_document(document))
        versions = routing.versions_for(shard)
        return await send_to_one(part, shard, message_with_versions(part.request.message, versions))

    inserted = await with_routing(part, operation.namespace, attempt)
    inserted.raise_for_error()
    errors = inserted.get(b"writeErrors", ())
    if errors:
        raise _insertion_error(errors[0])


def failed_update(error: CommandError) -> dict[str, Any] | None:
    """The reply to an ``update`` whose document could not be inserted; None if the error is that of the whole command.

    Args:
        error: from `insert_with_new_owner`.
    """
    if error.labels or has_category(error.code, Category.RETRYABLE) or has_category(error.code, Category.STALE_ROUTING):
        return None
    item = {"index": 0, "code": error.code, "errmsg": error.message, **error.extra}
    return {"n": 0, "nModified": 0, "writeErrors": [item]}


def _insertion_error(error: dict[str, Any]) -> CommandError:
    extra = {name: value for name, value in error.items() if name not in ("index", "code", "errmsg")}
    message = str(error.get("errmsg", ""))
    if error["code"] == ErrorCode.DuplicateKey and "_id" in error.get("keyPattern", ()):
        message = f"{_SECOND_ID} :: caused by :: {message}"
    return CommandError(int(error["code"]), message, extra=extra)
