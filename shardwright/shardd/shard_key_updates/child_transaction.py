"""Executing one statement of a retryable write in a transaction, so that its history goes with every range that moves.

A retry is routed by the shard key in its query, and has to find its history there. Migrations pass on what was inserted
by the shard key of the document, because a session may have inserted much that does not move. So an upsert of a
document with another key than its query is executed like a write that a router executes in a transaction: in a session
derived from that of the write, whose statements are passed on with all ranges (`session_history.child_sessions`). By
it mongod recognizes a retry, too.
"""

from typing import Any, Final
from uuid import uuid4

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX, Attempt, run_attempts
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.session_history.statement import session_of
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.rawbson import append, decode_document, encode_document, encode_elements, raw_document, without
from shardwright.wire.transport.client import response_body
from shardwright.wire.write_concern import WRITE_CONCERN

_NOT_IN_TRANSACTION: Final = frozenset(
    {b"lsid", TXN_NUMBER, WRITE_CONCERN, b"apiVersion", b"apiStrict", b"apiDeprecationErrors"}
)


async def run_in_child_transaction(changing: KeyChangingRequest, body: bytes) -> dict[str, Any]:
    """The reply to a statement of a retryable write, with the times and the write concern error of its commit.

    Args:
        changing: the retryable write.
        body: the command that executes the statement, with its statement id.

    Raises:
        CommandError: no attempt has succeeded, for reasons that pass.
        BackendError: mongod does not answer.
    """
    request = changing.request
    session = session_of(request.body, request.fields[b"lsid"])
    assert session is not None  # mongod has history only for such sessions, and `has_begun` has looked for it
    write = {"txnNumber": request.get(TXN_NUMBER), "txnUUID": Binary.from_uuid(uuid4())}
    lsid = raw_document(append(session, encode_elements(write)))

    def begin(number: int) -> _ChildAttempt:
        return _ChildAttempt(changing, body, {"lsid": lsid, "txnNumber": Int64(number), AUTOCOMMIT.decode(): False})

    executed, committed = await run_attempts(begin, range(ATTEMPTS_MAX))
    return {**executed, **committed} if committed.get("ok", 1.0) else committed


class _ChildAttempt(Attempt[dict[str, Any], dict[str, Any]]):
    """A transaction of one statement, of which only failures that may pass are raised, and others are replies."""

    def __init__(self, changing: KeyChangingRequest, body: bytes, transaction: dict[str, Any]) -> None:
        self._changing = changing
        self._body = body
        self._transaction = transaction
        self._is_over = False

    async def run_statements(self) -> dict[str, Any]:
        start = {**self._transaction, START_TRANSACTION.decode(): True}
        reply = await self._reply(append(without(self._body, _NOT_IN_TRANSACTION), encode_elements(start)))
        self._is_over = not reply.get("ok") or "writeErrors" in reply
        return reply

    async def abort(self) -> None:
        """mongod has aborted it already."""

    async def abort_undecided(self) -> None:
        """Leave it to mongod, which ends it when its lifetime is over."""

    async def commit(self) -> dict[str, Any]:
        """Commit it; the reply is part of the statement's, so it is empty if that has failed."""
        if self._is_over:
            return {}
        request = self._changing.request
        named = (name for name in (WRITE_CONCERN, BYPASS.encode()) if name in request.fields)
        options = {name.decode(): request.get(name) for name in named}
        commit = {"commitTransaction": 1, **self._transaction, **options, "$db": "admin"}
        return await self._reply(encode_document(commit))

    def may_be_committed(self, error: CommandError) -> bool:
        """Whether to commit again: never, since only a retry of the write finds the primary that may know."""
        return False

    async def _reply(self, body: bytes) -> dict[str, Any]:
        """The reply to a command of the transaction.

        Raises:
            CommandError: it failed, and another attempt may succeed.
        """
        reply: dict[str, Any] = decode_document(response_body(await self._changing.exchange(body, next_request_id())))
        if TRANSIENT_TRANSACTION_ERROR in reply.get("errorLabels", ()):
            raise CommandError.from_reply(reply)
        return reply
