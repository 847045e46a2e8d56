"""Executing one statement in a transaction of its own, in a session derived from the session of the write.

There are two reasons. The command that would execute what was previewed may be too long, because it contains the
document before and after the update. A transaction needs neither: the update is executed first, and checked before the
commit.

The other reason is the history of a retryable write, which then goes with every range that moves. A retry is routed by
the shard key in its query, and has to find its history there. Migrations pass on what was inserted by the shard key of
the document, because a session may have inserted much that does not move. So an upsert of a document with another key
than its query is executed like a write that a router executes in a transaction: in a session derived from the session
of the write, whose statements are passed on with all ranges (`session_history.child_sessions`). mongod also recognizes
a retry by that session.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX, Attempt, run_attempts
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.session_history.statement import session_of
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import append, decode_document, encode_document, encode_elements, raw_document, without
from shardwright.wire.transport.client import response_body
from shardwright.wire.write_concern import WRITE_CONCERN

logger = get_logger("shardd.operations")

_NOT_IN_TRANSACTION: Final = frozenset(
    {
        *(b"lsid", TXN_NUMBER, b"stmtId", b"stmtIds", WRITE_CONCERN),
        *(b"apiVersion", b"apiStrict", b"apiDeprecationErrors"),
    }
)

_END_SECONDS_MAX: Final = 5.0
"""How long to wait for the end of a transaction that has failed; otherwise mongod ends it after its lifetime."""

_Execute = Callable[[KeyChangingRequest], Awaitable[dict[str, Any]]]


async def run_in_child_transaction(
    changing: KeyChangingRequest, statement_id: int, execute: _Execute
) -> dict[str, Any]:
    """The reply to a statement, with the times and the write concern error of its commit.

    Args:
        changing: the write that the statement belongs to, outside transactions.
        statement_id: the id of the statement if the write is retryable.
        execute: executes the statement, given the write as the only operation of a transaction that it has to start;
            returns mongod's reply.

    Raises:
        CommandError: the update is not allowed; or no attempt has succeeded, for reasons that pass.
        BackendError: mongod does not answer.
    """
    lsid = raw_document(_child_session(changing))
    numbered = {"stmtId": statement_id} if changing.is_retryable else {}

    def begin(number: int) -> _ChildAttempt:
        transaction = {"lsid": lsid, TXN_NUMBER.decode(): Int64(number), AUTOCOMMIT.decode(): False}
        start = encode_elements({**transaction, START_TRANSACTION.decode(): True, **numbered})
        request = changing.request.with_body(append(without(changing.request.body, _NOT_IN_TRANSACTION), start))
        child = replace(changing, request=request, may_change_key=changing.is_retryable)
        return _ChildAttempt(changing, transaction, lambda: execute(child))

    executed, committed = await run_attempts(begin, range(ATTEMPTS_MAX))
    return {**executed, **committed} if committed.get("ok", 1.0) else committed


def _child_session(changing: KeyChangingRequest) -> bytes:
    request, write = changing.request, {"txnUUID": Binary.from_uuid(uuid4())}
    lsid = request.fields.get(b"lsid")
    session = None if lsid is None else session_of(request.body, lsid)
    if changing.is_retryable:
        write = {TXN_NUMBER.decode(): request.get(TXN_NUMBER), **write}
        assert session is not None  # mongod has history only for such sessions, and `has_begun` has looked for it
    if session is None:
        session = encode_document({"id": Binary.from_uuid(uuid4())})
    return append(session, encode_elements(write))


class _ChildAttempt(Attempt[dict[str, Any], dict[str, Any]]):
    """A transaction of one statement, of which only failures that may pass are raised, and others are replies."""

    def __init__(
        self,
        changing: KeyChangingRequest,
        transaction: dict[str, Any],
        execute: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self._changing = changing
        self._transaction = transaction
        self._execute = execute
        self._is_over = False

    async def run_statements(self) -> dict[str, Any]:
        reply = _checked(await self._execute())
        self._is_over = not reply.get("ok") or "writeErrors" in reply
        return reply

    async def abort(self) -> None:
        """Abort it where mongod has not: the update was executed and is not allowed, or the client has left."""
        with trio.move_on_after(_END_SECONDS_MAX):
            try:
                await self._changing.mongod.command("admin", {"abortTransaction": 1, **self._transaction})
            except (CommandError, BackendError) as error:
                logger.debug("A transaction of a statement has ended otherwise", error=str(error))

    async def abort_undecided(self) -> None:
        """Abort it, unless the commit has arrived."""
        await self.abort()

    async def commit(self) -> dict[str, Any]:
        """Commit it; the reply is part of the statement's, so it is empty if that has failed."""
        if self._is_over:
            return {}
        request = self._changing.request
        named = (name for name in (WRITE_CONCERN, BYPASS.encode()) if name in request.fields)
        options = {name.decode(): request.get(name) for name in named}
        commit = {"commitTransaction": 1, **self._transaction, **options, "$db": "admin"}
        try:
            frame = await self._changing.exchange(encode_document(commit), next_request_id())
        except BackendError:
            await self.abort()  # the commit may not have arrived
            raise
        return _checked(decode_document(response_body(frame)))

    def may_be_committed(self, error: CommandError) -> bool:
        """Whether to commit again: never, since only a retry of the write finds the primary that may know."""
        return False


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply to a command of the transaction.

    Raises:
        CommandError: it failed, and another attempt may succeed.
    """
    if TRANSIENT_TRANSACTION_ERROR in reply.get("errorLabels", ()):
        raise CommandError.from_reply(reply)
    return reply
