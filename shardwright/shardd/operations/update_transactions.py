"""Executing an update that may change a shard key in a transaction, the client's or an internal one.

There are two reasons for an internal transaction. First, the command that would execute the preview may be too long,
because it contains the document before and after the update. In a transaction the update is executed first, and checked
before the commit.

Second, the history of a retryable write must be found by its retry, which is routed by the shard key in its query.
Migrations transfer the history of inserts by the shard key of the document, because a session may have inserted much
that does not move. An upsert may insert a document with another key than its query. It is then executed like a write
that a router executes in a transaction: in a child session of the write's session, whose statements migrate with all
ranges (`session_history.statement`). mongod also recognizes a retry by that session.

No other client can change documents that the transaction sees, so the update is executed first and checked afterwards.
If it is not allowed, the transaction is aborted, as after every failed statement. A document that then belongs to
another shard is deleted again (see `sharding.transaction_protocol`). If the sender does not support that, as a genuine
router does not, the document is restored, and the error includes the updated document.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.internal_transaction import ATTEMPTS_MAX, Attempt, run_attempts
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.operations.key_changes import KeyChange
from shardwright.shardd.operations.key_changing_request import KeyChangingRequest
from shardwright.shardd.operations.previewed_updates import Preview, only_with_id
from shardwright.shardd.session_history.statement import session_of
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    append,
    array_documents,
    decode_document,
    decode_value,
    encode_document,
    encode_elements,
    find,
    index,
    raw_document,
    without,
    wrap_value,
)
from shardwright.wire.request_validation import WRITE_CONCERN
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

logger = get_logger("shardd.operations")


_STARTING: Final = frozenset({START_TRANSACTION, b"readConcern"})
_CARRIED: Final = (b"lsid", TXN_NUMBER, AUTOCOMMIT, BYPASS.encode())
"""Fields that each command copies from the request."""
_NO_HISTORY: Final = -1
"""The statement id of a statement without history."""


class TransactionSteps:
    """The commands of one request, which raise CommandError if the transaction conflicts with others."""

    def __init__(self, changing: KeyChangingRequest) -> None:
        self._changing = changing
        self._has_begun = False
        body, fields = changing.request.body, changing.request.fields
        self._session = b"".join(body[fields[name][1] : fields[name][3]] for name in _CARRIED if name in fields)
        self._start = b"".join(body[fields[name][1] : fields[name][3]] for name in _STARTING if name in fields)

    async def run(self, body: bytes, request_id: int) -> bytes:
        """Run the request itself, or its replacement; return mongod's reply frame.

        Args:
            body: the command, with all transaction fields of the request.
            request_id: the id of the request that the reply answers.
        """
        if self._has_begun:
            body = without(body, _STARTING)
        self._has_begun = True
        return await self._changing.exchange(body, request_id)

    async def find_one(self, query: bytes, options: Mapping[str, Any]) -> bytes | None:
        """Return the first document that matches, in the transaction's snapshot.

        Raises:
            CommandError: the query is invalid; or the transaction conflicts with others.
        """
        reply = await self._command(
            {"find": self._collection, "filter": raw_document(query), **options, "limit": 1, "singleBatch": True}
        )
        cursor = index(reply, index(reply)[b"cursor"][2])
        return next(iter(array_documents(reply, cursor[b"firstBatch"])), None)

    async def find_all(self, find: Mapping[str, Any]) -> list[bytes]:
        """Return all documents of a find, in the transaction's snapshot; errors as `find_one`."""
        return await RawCursor(
            self._send, self._changing.namespace.db, {"find": self._collection, **find}
        ).all_documents()

    async def find_same(self, document: bytes) -> bytes | None:
        """Return the document with the same ``_id``."""
        return await self.find_one(only_with_id(EMPTY_DOCUMENT, document, is_collated=True), {})

    async def delete(self, document: bytes) -> None:
        """Delete the document with the same ``_id``; the statement has no history."""
        query = only_with_id(EMPTY_DOCUMENT, document, is_collated=True)
        await self._command(
            {
                "delete": self._collection,
                "deletes": [{"q": raw_document(query), "limit": 1}],
                "stmtIds": [_NO_HISTORY],
            }
        )

    async def restore(self, document: bytes) -> None:
        """Insert a deleted document again; the statement has no history."""
        await self._command(
            {
                "insert": self._collection,
                "documents": [raw_document(document)],
                "bypassDocumentValidation": True,
                "stmtIds": [_NO_HISTORY],
            }
        )

    async def abort(self) -> None:
        """Abort the transaction, as mongod does when a statement fails."""
        body = append(encode_document({"abortTransaction": 1, "$db": "admin"}), self._session)
        await self._changing.exchange(body, next_request_id())

    async def _command(self, command: Mapping[str, Any]) -> bytes:
        body = encode_document({**command, "$db": self._changing.namespace.db})
        reply = response_body(await self._send(op_msg(body, request_id=next_request_id())))
        ok = find(reply, b"ok")
        if ok is None or not decode_value(reply, ok):
            raise CommandError.from_reply(decode_document(reply))
        return reply

    async def _send(self, frame: bytes) -> bytes:
        start = b"" if self._has_begun else self._start
        self._has_begun = True
        message = OpMsg(frame)
        return await self._changing.exchange(append(message.body, start + self._session), message.request_id)

    @property
    def _collection(self) -> str:
        return self._changing.namespace.collection


_NOT_IN_TRANSACTION: Final = frozenset(
    {
        *(b"lsid", TXN_NUMBER, b"stmtId", b"stmtIds", WRITE_CONCERN),
        *(b"apiVersion", b"apiStrict", b"apiDeprecationErrors"),
    }
)

_END_SECONDS_MAX: Final = 5.0
"""Maximum wait for the end of a failed transaction, which mongod otherwise ends after its lifetime."""

_Execute = Callable[[KeyChangingRequest], Awaitable[dict[str, Any]]]


async def run_in_child_transaction(
    changing: KeyChangingRequest, statement_id: int, execute: _Execute
) -> dict[str, Any]:
    """Run a statement in an internal transaction; return its reply with the commit's times and write concern error.

    Args:
        changing: the write that the statement belongs to, outside transactions.
        execute: executes the statement and returns mongod's reply; receives the write as the only operation of a
            transaction that it starts.

    Raises:
        CommandError: the update is not allowed; or all attempts failed for transient reasons.
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
    """A transaction of one statement. Transient failures are raised, others are replies."""

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
        """Abort the transaction where mongod has not: the update is not allowed, or the client has disconnected."""
        with trio.move_on_after(_END_SECONDS_MAX):
            try:
                await self._changing.mongod.command("admin", {"abortTransaction": 1, **self._transaction})
            except (CommandError, BackendError) as error:
                logger.debug("A transaction of a statement has ended otherwise", error=str(error))

    async def abort_undecided(self) -> None:
        """Abort the transaction, unless the commit has arrived."""
        await self.abort()

    async def commit(self) -> dict[str, Any]:
        """Commit the transaction; the reply becomes part of the statement's, so it is empty if the statement failed."""
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
        """Whether to commit again: never, because only a retry of the write finds the current primary."""
        return False


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a command of the transaction; raise its error if another attempt may succeed."""
    if TRANSIENT_TRANSACTION_ERROR in reply.get("errorLabels", ()):
        raise CommandError.from_reply(reply)
    return reply


@dataclass(frozen=True, slots=True)
class Executed:
    """Result of an update.

    Attributes:
        reply: the body of mongod's reply to the update.
        left: the document that has left the shard, None if none has.
    """

    reply: bytes
    left: bytes | None = None


async def update_in_transaction(
    steps: TransactionSteps,
    change: KeyChange,
    finding: Mapping[str, Any],
    execute: Callable[[bytes | None], Awaitable[bytes]],
    *,
    may_leave: bool,
) -> Executed:
    """Update or upsert one document.

    Args:
        finding: the options of a find of the document that the update concerns (sort, collation and so on).
        execute: executes the update, restricted to the given document if there is one; returns the body of the reply.
        may_leave: whether the sender inserts the document on the shard that it then belongs to.

    Raises:
        CommandError: WouldChangeOwningShard, the document would leave and may not, and nothing has changed; the update
            is not allowed, so the transaction must be aborted; the query is invalid.
    """
    before = await steps.find_one(change.query, finding)
    reply = await execute(before)
    fields = index(reply)
    if not decode_value(reply, fields[b"ok"]) or fields.keys() & {b"writeErrors", b"retriedStmtIds", b"retriedStmtId"}:
        return Executed(reply)
    identity = before if before is not None else _upserted(reply, fields)
    after = None if identity is None else await steps.find_same(identity)
    try:
        change.check(Preview(before, after))
    except CommandError as error:
        if error.code != ErrorCode.WouldChangeOwningShard or after is None:
            raise
        await steps.delete(after)
        if may_leave:
            return Executed(reply, after)
        if before is not None:
            await steps.restore(before)
        raise
    return Executed(reply)


def _upserted(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """Return a document with the ``_id`` that an update or a findAndModify has inserted, if any."""
    outcome, upserted = fields.get(b"lastErrorObject"), fields.get(b"upserted")
    if upserted is not None:
        first = find(reply, b"0", upserted[2])
        return None if first is None or first[0] != OBJECT else reply[first[2] : first[3]]
    span = None if outcome is None else find(reply, b"upserted", outcome[2])
    return None if span is None else wrap_value(span[0], reply[span[2] : span[3]], b"_id")
