"""Updates that change a shard key so that the document belongs to another shard.

In a transaction, the shard that has the document executes the update and hands over the result, which the router then
inserts where it belongs (see `sharding.owner_changes`). A retryable write does the same in a transaction of the router,
in a session derived from the write's, so that the shard recognizes the write when it is sent again.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.child_session import child_of_retryable_write
from shardwright.router.transactions.internal_transaction import run_internal_transaction
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.router.writes.messages import message_with_versions
from shardwright.router.writes.statement_ids import STATEMENT_ID_FIELDS
from shardwright.sharding.operation_session import AUTOCOMMIT, TXN_NUMBER
from shardwright.sharding.owner_changes import CHANGED_OWNER, MAY_CHANGE_OWNER, document_of_other_owner
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    BOOL,
    append,
    decode_document,
    element,
    encode_document,
    encode_elements,
    raw_document,
    without,
)
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request
from shardwright.wire.write_concern import WRITE_CONCERN

CHANGED_OWNER_FIELDS: Final = frozenset({CHANGED_OWNER})

_NOT_IN_TRANSACTION: Final = STATEMENT_ID_FIELDS | {WRITE_CONCERN}
_IN_TRANSACTION: Final = element(AUTOCOMMIT, BOOL, b"\0")
_NO_HISTORY: Final = -1
_SECOND_ID: Final = (
    "Failed to update document's shard key field. There is either an orphan for this document or _id for this "
    "collection is not globally unique."
)


class OwnerWouldChangeError(Exception):
    """A retryable write has to be executed in a transaction, because a document would belong to another shard."""


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


def refuse_or_move(operation: Operation, refusal: CommandError) -> None:
    """Decide what follows from WouldChangeOwningShard: only a retryable write can begin again, in a transaction.

    Args:
        operation: the client's.
        refusal: its error if it cannot.

    Raises:
        OwnerWouldChangeError: it can.
        CommandError: it cannot.
    """
    if operation.is_retryable_write and operation.transaction is None and refusal.code != ErrorCode.InvalidOptions:
        raise OwnerWouldChangeError
    raise refusal


async def execute_in_transaction(operation: Operation, execute: Callable[[Operation], Awaitable[Reply]]) -> Reply:
    """Execute a retryable write of one statement in a transaction of the router.

    Args:
        operation: the write.
        execute: executes the part of it that is given, in its transaction.

    Raises:
        CommandError: it failed.
    """
    request = operation.request
    lsid = request.raw_object(b"lsid")
    assert lsid is not None
    child = child_of_retryable_write(lsid, int(request.get(TXN_NUMBER)), uuid4())
    part_request = _as_part(request)

    async def statements(transaction: RouterTransaction) -> dict[str, Any]:
        part = operation.part(part_request)
        transaction.begin_statement()
        part.enter(transaction)
        reply = _decoded(await execute(part))
        if "writeErrors" in reply:
            raise _FailedStatementError(reply)
        return reply

    try:
        reply, committed = await run_internal_transaction(
            operation.context.sender, child, statements, commit_elements=raw_elements(request, (WRITE_CONCERN,))
        )
    except _FailedStatementError as failed:
        return failed.reply
    if committed is not None and b"writeConcernError" in committed.fields:
        concern_error = reply["writeConcernError"] = committed.get(b"writeConcernError")
        if has_category(int(concern_error.get("code", 0)), Category.RETRYABLE):
            reply["errorLabels"] = [RETRYABLE_WRITE_ERROR]
    return reply


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
    body = append(encode_document({**elements, "$db": request.db}), _IN_TRANSACTION)
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


class _FailedStatementError(Exception):
    """A statement has failed, and with it the transaction, but not the client's command."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__()
        self.reply = reply


def _as_part(request: Request) -> Request:
    """The client's command as a statement of a transaction, which keeps its statement id."""
    ids = request.get(b"stmtIds")
    statement_id = ids[0] if ids else request.get(b"stmtId") or 0
    numbered = {"stmtId": statement_id} if request.name.lower() == "findandmodify" else {"stmtIds": [statement_id]}
    body = append(without(request.body, _NOT_IN_TRANSACTION), encode_elements(numbered) + _IN_TRANSACTION)
    return request.with_body(body)


def _decoded(reply: Reply) -> dict[str, Any]:
    """A reply without the times, which were those before the commit.

    Raises:
        CommandError: it is an error.
    """
    assert reply is not None
    decoded: dict[str, Any] = decode_document(OpMsg(reply).body) if isinstance(reply, bytes) else reply
    if not decoded.get("ok", 1):
        raise CommandError.from_reply(decoded)
    return {name: value for name, value in decoded.items() if name not in ("$clusterTime", "operationTime")}


def _insertion_error(error: dict[str, Any]) -> CommandError:
    extra = {name: value for name, value in error.items() if name not in ("index", "code", "errmsg")}
    message = str(error.get("errmsg", ""))
    if error["code"] == ErrorCode.DuplicateKey and "_id" in error.get("keyPattern", ()):
        message = f"{_SECOND_ID} :: caused by :: {message}"
    return CommandError(int(error["code"]), message, extra=extra)
