"""Retryable writes that the router executes in a transaction, because they move a document to another shard.

The transaction's session is derived from that of the write, so that the shard recognizes the write when it is sent
again.

Genuine shards have the router delete and insert the document, which nobody would recognize as the update. There the
transaction has the session and the number of the write, as with MongoDB's own routers: when it is sent again, it is
refused with IncompleteTransactionHistory.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from shardwright.router.context.fail_point_names import HANG_BEFORE_MOVING_DOCUMENT
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.owner_changes import hand_over
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.own_reply import Reply
from shardwright.router.transactions.child_session import child_of_retryable_write, own_session
from shardwright.router.transactions.internal_transaction import run_internal_transaction
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.router.transactions.session_fields import AUTOCOMMIT_ELEMENT
from shardwright.router.writes.statement_ids import STATEMENT_ID_FIELDS
from shardwright.sharding.operation_session import TXN_NUMBER
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import append, decode_document, encode_elements, without
from shardwright.wire.reply_times import TIMES
from shardwright.wire.request import Request
from shardwright.wire.write_concern import WRITE_CONCERN

_NOT_IN_TRANSACTION: Final = STATEMENT_ID_FIELDS | {WRITE_CONCERN}


class OwnerWouldChangeError(Exception):
    """A retryable write has to be executed in a transaction, because a document would belong to another shard."""


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
    """A statement has failed, and with it the transaction, but not the client's command."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__()
        self.reply = reply


def _as_part(request: Request, *, has_history: bool) -> Request:
    """The client's command as a statement of a transaction, which keeps its statement id if that is remembered."""
    body = without(request.body, _NOT_IN_TRANSACTION)
    if has_history:
        ids = request.get(b"stmtIds")
        statement_id = ids[0] if ids else request.get(b"stmtId") or 0
        numbered = {"stmtId": statement_id} if request.name.lower() == "findandmodify" else {"stmtIds": [statement_id]}
        body = append(body, encode_elements(numbered))
    return request.with_body(append(body, AUTOCOMMIT_ELEMENT))


def _decoded(reply: Reply) -> dict[str, Any]:
    """A reply without the times, which were those before the commit.

    Raises:
        CommandError: it is an error.
    """
    assert reply is not None
    decoded: dict[str, Any] = decode_document(OpMsg(reply).body) if isinstance(reply, bytes) else reply
    if not decoded.get("ok", 1):
        raise CommandError.from_reply(decoded)
    return {name: value for name, value in decoded.items() if name not in TIMES}
