"""Updates that change a shard key so that the document belongs to another shard (``WouldChangeOwningShard``).

In a transaction, the document's shard executes the update and returns the result. The router then inserts it on the new
owner (see `sharding.transaction_protocol`). A retryable write does the same in an internal transaction of the router,
whose session is derived from the write's session. The shard thereby recognizes the write when it is sent again.

Genuine shards do not execute such an update. They reply ``WouldChangeOwningShard``, and the transaction continues. For
them the router deletes and inserts the document, as mongos does. These statements cannot be recognized as the update.
The transaction therefore has the session and the number of the write, and a retry is refused with
IncompleteTransactionHistory.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from shardwright.router.context.options import HANG_BEFORE_MOVING_DOCUMENT
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.internal_transaction import (
    child_of_retryable_write,
    own_session,
    run_internal_transaction,
)
from shardwright.router.transactions.router_transaction import AUTOCOMMIT_ELEMENT, RouterTransaction
from shardwright.router.writes.batch import STATEMENT_ID_FIELDS
from shardwright.router.writes.outcome import error_document
from shardwright.router.writes.targeted_batch import message_with_versions
from shardwright.sharding.transaction_protocol import (
    CHANGED_OWNER,
    MAY_CHANGE_OWNER,
    TXN_NUMBER,
    OwnerChange,
    document_of_other_owner,
)
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import append, decode_document, encode_document, encode_elements, raw_document, without
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request, raw_elements
from shardwright.wire.request_validation import WRITE_CONCERN
from shardwright.wire.transport.reactor import may_run_in_reactor

_NO_HISTORY: Final = -1
_BYPASS: Final = b"bypassDocumentValidation"
_CARRIED: Final = (b"mayBypassWriteBlocking",)
_SECOND_ID: Final = (
    "Failed to update document's shard key field. There is either an orphan for this document or _id for this "
    "collection is not globally unique."
)


class OwnerRefusedError(Exception):
    """A shard's refusal of a statement in a transaction because the document would belong to another shard.

    Attributes:
        change: the change that the statement would have made.
    """

    def __init__(self, change: OwnerChange) -> None:
        super().__init__()
        self.change = change


def raise_if_refused(reply: ShardReply) -> None:
    """Raise `OwnerRefusedError` if the only statement of a command in a transaction was refused so."""
    if reply.error is not None and reply.error.code == ErrorCode.WouldChangeOwningShard:
        change = OwnerChange.read(reply.body, reply.fields)
        if change is not None:
            raise OwnerRefusedError(change)


async def replace_document(operation: Operation, change: OwnerChange) -> bool:
    """Delete a document and insert its new version on the new owner; return False if it no longer exists."""
    if not change.is_upsert and not await _delete(operation, change.before):
        return False
    await insert_document(operation, change.after)
    return True


async def insert_document(operation: Operation, document: bytes) -> None:
    """Insert a raw document on the shard that owns its key. The statement is not recorded for retries."""
    request = operation.request
    command: dict[str, Any] = {"insert": request.collection, "documents": [raw_document(document)]}
    if _BYPASS in request.fields:
        command[_BYPASS.decode()] = request.get(_BYPASS)
    reply = await _send(operation, document, lambda _: command)
    if errors := reply.get(b"writeErrors", ()):
        raise _insertion_error(errors[0])


async def _delete(operation: Operation, document: bytes) -> bool:
    """Delete a document by its key and ``_id``, with the simple collation so that no other document matches."""

    def command(routing: CollectionRouting) -> dict[str, Any]:
        query = document if routing.table is None else routing.table.key_pattern.query_of_document(document)
        item = {"q": raw_document(query), "limit": 1, "collation": {"locale": "simple"}}
        return {"delete": operation.request.collection, "deletes": [item]}

    reply = await _send(operation, document, command)
    if errors := reply.get(b"writeErrors", ()):
        raise CommandError.from_reply(errors[0])
    return bool(reply.get(b"n"))


async def _send(
    operation: Operation, document: bytes, command: Callable[[CollectionRouting], dict[str, Any]]
) -> ShardReply:
    """Send a statement of the transaction to the shard that owns the key of a document."""

    def part_with(routing: CollectionRouting) -> Operation:
        body = encode_document({**command(routing), "stmtIds": [_NO_HISTORY], "$db": operation.request.db})
        carried = AUTOCOMMIT_ELEMENT + raw_elements(operation.request, _CARRIED)
        frame = op_msg(append(body, carried), request_id=operation.request.message.request_id)
        return operation.part(Request(OpMsg(frame)))

    async def attempt(routing: CollectionRouting) -> ShardReply:
        part, shard = part_with(routing), routing.primary
        if routing.table is not None:
            shard = routing.table.shard_for_key(routing.table.key_pattern.key_bytes_of_document(document))
        return await send_to_one(part, shard, message_with_versions(part.request.message, routing.versions_for(shard)))

    reply = await with_routing(operation, operation.namespace, attempt)
    reply.raise_for_error()
    return reply


def _insertion_error(error: dict[str, Any]) -> CommandError:
    extra = {name: value for name, value in error.items() if name not in ("index", "code", "errmsg")}
    message = f"During insert stage of updating a shard key :: caused by :: {error.get('errmsg', '')}"
    if error["code"] == ErrorCode.DuplicateKey and "_id" in error.get("keyPattern", ()):
        message = f"{_SECOND_ID} :: caused by :: {message}"
    return CommandError(int(error["code"]), message, extra=extra)


CHANGED_OWNER_FIELDS: Final = frozenset({CHANGED_OWNER})


@may_run_in_reactor
async def may_change_owner(operation: Operation, routing: CollectionRouting) -> bool:
    """Whether an update may make the shards hand over documents that no longer belong to them.

    Raises:
        CommandError: ShardNotFound; FailedToSatisfyReadPreference.
    """
    return operation.transaction is not None and await hand_over(operation, routing)


@may_run_in_reactor
async def hand_over(operation: Operation, routing: CollectionRouting) -> bool:
    """Whether all owners of a sharded collection can hand over documents. Genuine shards cannot.

    Raises:
        CommandError: ShardNotFound; FailedToSatisfyReadPreference.
    """
    if routing.table is None:
        return False
    understands = operation.context.shards.understands
    for shard in routing.shards:
        if not await understands(shard, MAY_CHANGE_OWNER.decode(), PRIMARY):
            return False
    return True


async def insert_with_new_owner(operation: Operation, reply: ShardReply) -> None:
    """Insert the document that a shard has handed over, if any, on the shard that owns its new key."""
    document = document_of_other_owner(reply.body, reply.fields) if reply.error is None else None
    if document is not None:
        await insert_document(operation, document)


async def update_by_replacement(operation: Operation, change: OwnerChange) -> dict[str, Any]:
    """Execute an ``update`` of one document by a delete and an insert; return the reply."""
    try:
        count = int(await replace_document(operation, change))
    except CommandError as error:
        failed = failed_update(error)
        if failed is None:
            raise
        return failed
    if not change.is_upsert:
        return {"nModified": count, "n": count}
    return {"nModified": 0, "n": count, "upserted": [{"index": 0, "_id": _id_of(change.after)}]}


async def modify_by_replacement(operation: Operation, change: OwnerChange) -> dict[str, Any]:
    """Execute a ``findAndModify`` by a delete and an insert; return the reply.

    As in MongoDB, the reply has whole documents, regardless of ``fields``.
    """
    is_done = await replace_document(operation, change)
    outcome: dict[str, Any] = {"n": int(is_done), "updatedExisting": is_done and not change.is_upsert}
    if change.is_upsert:
        outcome["upserted"] = _id_of(change.after)
    value = None
    if is_done and operation.argument(b"new", False):
        value = raw_document(change.after)
    elif is_done and not change.is_upsert:
        value = raw_document(change.before)
    return {"lastErrorObject": outcome, "value": value}


def failed_update(error: CommandError) -> dict[str, Any] | None:
    """Return the reply to an ``update`` whose document could not be inserted; None for an error of the whole command.

    Args:
        error: from `insert_with_new_owner`.
    """
    if error.labels or has_category(error.code, Category.RETRYABLE) or has_category(error.code, Category.STALE_ROUTING):
        return None
    return {"n": 0, "nModified": 0, "writeErrors": [raw_document(error_document(error))]}


def _id_of(document: bytes) -> Any:  # noqa: ANN401 - any BSON value
    return decode_document(document)["_id"]


_NOT_IN_TRANSACTION: Final = STATEMENT_ID_FIELDS | {WRITE_CONCERN}


class OwnerWouldChangeError(Exception):
    """A retryable write must restart in a transaction, because a document would belong to another shard."""


def refuse_or_move(operation: Operation, refusal: CommandError) -> None:
    """Raise the error that follows from ``WouldChangeOwningShard``.

    Only a retryable write can restart in a transaction.

    Args:
        refusal: the error for other operations.

    Raises:
        OwnerWouldChangeError: it can restart.
        CommandError: it cannot.
    """
    if operation.is_retryable_write and operation.transaction is None and refusal.code != ErrorCode.InvalidOptions:
        raise OwnerWouldChangeError
    raise refusal


async def execute_in_transaction(operation: Operation, execute: Callable[[Operation], Awaitable[Reply]]) -> Reply:
    """Execute a retryable write of one statement in an internal transaction.

    Args:
        execute: executes the statement in the transaction that it is given.
    """
    await operation.context.fail_points.hang_while(HANG_BEFORE_MOVING_DOCUMENT)
    request = operation.request
    lsid, number = request.raw_object(b"lsid"), int(request.get(TXN_NUMBER))
    assert lsid is not None
    routing = await operation.context.routing.collection(operation.namespace)
    has_history = await hand_over(operation, routing)
    session = child_of_retryable_write(lsid, number, uuid4()) if has_history else own_session(lsid)
    part_request = _as_part(request, has_history=has_history)

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
            operation.context.sender,
            session,
            statements,
            number=None if has_history else number,
            commit_elements=raw_elements(request, (WRITE_CONCERN,)),
        )
    except _FailedStatementError as failed:
        return failed.reply
    if committed is not None and b"writeConcernError" in committed.fields:
        concern_error = reply["writeConcernError"] = committed.get(b"writeConcernError")
        if has_category(int(concern_error.get("code", 0)), Category.RETRYABLE):
            reply["errorLabels"] = [RETRYABLE_WRITE_ERROR]
    return reply


class _FailedStatementError(Exception):
    """A statement failed, and the transaction with it, but not the client's command."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__()
        self.reply = reply


def _as_part(request: Request, *, has_history: bool) -> Request:
    """Convert the client's command to a statement of a transaction; keep its statement id if shards record it."""
    body = without(request.body, _NOT_IN_TRANSACTION)
    if has_history:
        ids = request.get(b"stmtIds")
        statement_id = ids[0] if ids else request.get(b"stmtId") or 0
        numbered = {"stmtId": statement_id} if request.name.lower() == "findandmodify" else {"stmtIds": [statement_id]}
        body = append(body, encode_elements(numbered))
    return request.with_body(append(body, AUTOCOMMIT_ELEMENT))


def _decoded(reply: Reply) -> dict[str, Any]:
    """Decode a reply, without its times, which precede the commit."""
    assert reply is not None
    decoded: dict[str, Any] = decode_document(OpMsg(reply).body) if isinstance(reply, bytes) else reply
    if not decoded.get("ok", 1):
        raise CommandError.from_reply(decoded)
    return {name: value for name, value in decoded.items() if name not in TIMES}
