"""The sessions reserved for the writes of migrations: cloned and changed documents, and range deletions.

Users' change streams must not show documents moving. So these writes are made in transactions of sessions with known
ids. Change streams opened through a shard daemon leave out events whose ``lsid.id`` is one of `RESERVED_SESSION_IDS`.
(A transaction also inserts at full speed where the same ``_id`` was deleted a moment ago.)

A transaction (`Transaction`) runs statement by statement, within one term of the local mongod. Replies are inspected
without decoding the documents in them.

A transaction interrupted by a cancellation, a broken connection or the end of a former daemon may still be open in
mongod. Before anything else is written, each such session is *settled*: an empty transaction with a higher number
begins only when the previous one is over, and ends it if it is open. So an abandoned write cannot appear after a task
has cleaned up.

Transaction numbers continue from the highest that mongod has seen, which mongod names when it refuses a lower one. They
do not depend on clocks, which may go back.

mongod does not support transactions on its internal databases, where ``config.system.sessions`` can be sharded. Users'
change streams do not cover them, so the same writes are made there without transactions.

An ``insert`` would change a document with a top-level ``Timestamp(0, 0)``, which mongod replaces by the present. A
document may contain one nevertheless, since updates can set it, and then its copy on another shard needs it too.
(mongod does not replace it in ``_id`` or below the top level.)
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import REPLICATION_DATA, LocalMongod
from shardwright.daemon.sidecar.term_fence import check_term, term_of_body, term_of_task
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, BackendError, CommandError, check_writes
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import encode_sequence, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    TIMESTAMP,
    Span,
    decode_document,
    encode_document,
    find,
    raw_document,
    spans,
    wrap_value,
)
from shardwright.wire.transport.client import response_body

_OK: Final = b"\0\0\0\0\0\0\xf0?"

_EMPTY: Final = bytes(8)
_SIGN: Final = b"\0" + _EMPTY
"""The end of a name and an empty timestamp, possibly a false match. Documents without it need no closer look."""


def is_ok(reply: bytes) -> bool:
    """Whether a command succeeded."""
    ok = find(reply, b"ok")
    return ok is not None and reply[ok[2] : ok[3]] == _OK


def check_reply(reply: bytes) -> None:
    """Raise the error of a command, of one of its items, or of its write concern."""
    if is_ok(reply) and find(reply, b"writeErrors") is None and find(reply, b"writeConcernError") is None:
        return
    decoded = decode_document(reply)
    if not decoded.get("ok"):
        raise CommandError.from_reply(decoded)
    check_writes(decoded)


def required_array(reply: bytes, name: bytes) -> Span:
    """Find an array in a reply, or raise FailedToParse."""
    span = find(reply, name)
    if span is None or span[0] != ARRAY:
        raise CommandError(ErrorCode.FailedToParse, f"the reply has no array '{name.decode()}'")
    return span


_ENDED: Final = frozenset({ErrorCode.NoSuchTransaction, ErrorCode.TransactionCommitted})


class Transaction:
    """One open transaction. Statements are run one after the other. BackendError means that mongod does not answer."""

    def __init__(self, mongod: LocalMongod, lsid: Mapping[str, Any], number: int) -> None:
        self._mongod = mongod
        self._fields: dict[str, Any] = {"lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
        self._has_begun = False

    async def run(
        self, db: str, body: Mapping[str, Any], sequence: tuple[bytes, Sequence[bytes]] | None = None
    ) -> bytes:
        """Run one statement; return the raw body of the reply.

        If the task works for a term, the statement fails in any other. A transaction therefore commits only in the term
        of its statements, because mongod aborts open transactions when it steps down.

        Args:
            body: the command without session and transaction fields.
            sequence: name and raw documents of an argument that is sent as a document sequence.

        Raises:
            CommandError: the statement, or one of its items, failed; InterruptedDueToReplStateChange, the term is over.
                In either case the transaction can only be aborted.
        """
        await self._mongod.check_term_before()
        reply = await self._exchange(db, body, sequence)
        check_reply(reply)
        expected = term_of_task()
        if expected is not None:
            check_term(expected, term_of_body(reply))
        return reply

    async def _exchange(
        self, db: str, body: Mapping[str, Any], sequence: tuple[bytes, Sequence[bytes]] | None = None
    ) -> bytes:
        start = {} if self._has_begun else {"startTransaction": True}
        self._has_begun = True
        command = bson.encode({**body, **start, **self._fields, BYPASS: True, REPLICATION_DATA: 1, "$db": db})
        sections = b"" if sequence is None else encode_sequence(*sequence)
        frame = op_msg(command, request_id=next_request_id(), sections=sections)
        return response_body(await self._mongod.pool.exchange(frame))

    async def commit(self, write_concern: Mapping[str, Any]) -> None:
        """Commit the transaction; after WriteConcernFailed it is committed, but the write concern was not met."""
        if self._has_begun:
            await self.run("admin", {"commitTransaction": 1, "writeConcern": write_concern})

    async def abort(self) -> None:
        """Abort the transaction, unless it has already ended."""
        if not self._has_begun:
            return
        try:
            # In any term, so without a term check that could fail.
            check_reply(await self._exchange("admin", {"abortTransaction": 1}))
        except CommandError as error:
            if error.code not in _ENDED:
                raise


def restoring_updates(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the statements of an ``update`` that restore inserted documents; mostly none."""
    return [_verbatim(document) for document in documents if has_empty_timestamp(document)]


def has_empty_timestamp(document: bytes) -> bool:
    """Whether a document has a top-level ``Timestamp(0, 0)`` outside ``_id``."""
    return _SIGN in document and any(
        kind == TIMESTAMP and name != b"_id" and document[start:end] == _EMPTY
        for name, (kind, _, start, end) in spans(document)
    )


def _verbatim(document: bytes) -> dict[str, Any]:
    """Return the statement that restores a document by an expression, where mongod does not replace timestamps."""
    kind, _, start, end = next(span for name, span in spans(document) if name == b"_id")
    identity = raw_document(wrap_value(kind, document[start:end], b"$eq"))
    return {"q": {"_id": identity}, "u": [{"$replaceWith": {"$literal": raw_document(document)}}]}


logger = get_logger("shardd.reserved_sessions")

Result = TypeVar("Result")

_FENCE: Final = Namespace("shardwright", "fence")
"""A collection for the empty transaction to read; it need not exist."""

_NUMBER_IS_TAKEN: Final = frozenset({ErrorCode.TransactionTooOld, ErrorCode.ConflictingOperationInProgress})
_NEWEST_NUMBER: Final = re.compile(r"because a newer .*txnNumber:? (\d+)")
"""Pattern of the number in TransactionTooOld. No query returns it: mongod stores only transactions that wrote."""

_NUMBERS_LEFT_OUT: Final = 1_000
"""Distance from the newest number, because mongod may yet receive a few more commands of a former process."""

_TRANSIENT_ATTEMPTS_MAX: Final = 10
_ABORT_SECONDS_MAX: Final = 1.0


class ReservedSession:
    """One of the reserved sessions, lent to one task.

    Its methods raise CommandError if a statement fails. WriteConcernFailed means that the statements were run. After
    BackendError, they may have been run or not.
    """

    def __init__(self, mongod: LocalMongod, session_id: UUID) -> None:
        self._mongod = mongod
        self._lsid = {"id": Binary.from_uuid(session_id)}
        self._number = 0
        self.is_settled = False

    async def insert(
        self,
        namespace: Namespace,
        documents: Sequence[bytes],
        *,
        write_concern: Mapping[str, Any] = LOCAL_WRITE_CONCERN,
    ) -> None:
        """Insert raw documents, all or none, unchanged and bypassing the collection's validator."""

        if namespace.is_internal:
            operations = [{"op": "i", "ns": str(namespace), "o": raw_document(document)} for document in documents]
            command = {"applyOps": operations, "writeConcern": write_concern}

            async def attempt(max_time: Mapping[str, int]) -> None:
                await self._mongod.write("admin", {**command, **max_time})

            await self._mongod.global_lock.between_transactions(attempt)
            return

        async def insert_all(transaction: Transaction) -> None:
            insert = {"insert": namespace.collection, "bypassDocumentValidation": True}
            await transaction.run(namespace.db, insert, (b"documents", documents))
            if updates := restoring_updates(documents):
                update = {"update": namespace.collection, "bypassDocumentValidation": True}
                await transaction.run(namespace.db, update, (b"updates", list(map(encode_document, updates))))

        await self.transact(insert_all, write_concern=write_concern)

    async def delete(
        self,
        namespace: Namespace,
        statements: Sequence[Mapping[str, Any]],
        *,
        write_concern: Mapping[str, Any] = LOCAL_WRITE_CONCERN,
    ) -> int:
        """Run the statements ``{q, limit, …}`` of a ``delete``, all or none; return the number of deleted documents."""
        delete = {"delete": namespace.collection, "deletes": statements}
        (reply,) = await self.run(namespace.db, [delete], write_concern=write_concern)
        return int(reply["n"])

    async def write_alone(self, db: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command as a retryable write of the session, for collections that no transaction may write.

        Its oplog entries have the session id too. It must not have statements with ``multi`` or ``limit: 0``.

        Raises:
            CommandError: the command failed, or the error of its first failed item.
        """
        self.is_settled = False
        self._number += 1
        session = {"lsid": self._lsid, "txnNumber": Int64(self._number)}
        reply = await self._mongod.execute_write(db, {**body, **session})
        self.is_settled = True
        return reply

    async def run(
        self, db: str, bodies: Sequence[Mapping[str, Any]], *, write_concern: Mapping[str, Any] = LOCAL_WRITE_CONCERN
    ) -> list[dict[str, Any]]:
        """Run several statements in one transaction; return the decoded replies."""

        if Namespace(db).is_internal:
            return [await self._mongod.write(db, {**body, "writeConcern": write_concern}) for body in bodies]

        async def run_all(transaction: Transaction) -> list[dict[str, Any]]:
            replies = [await transaction.run(db, body) for body in bodies]
            return [decode_document(reply) for reply in replies]

        return await self.transact(run_all, write_concern=write_concern)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[Result]],
        *,
        write_concern: Mapping[str, Any] = LOCAL_WRITE_CONCERN,
    ) -> Result:
        """Run ``work`` in a transaction and commit it; return the result of ``work``.

        A transaction that fails with a ``TransientTransactionError``, such as a write conflict, is repeated.
        """
        attempt, backoff = 1, Backoff(first_seconds=0.01, seconds_max=0.1)
        while True:
            transaction = self._begin()
            self.is_settled = False
            try:
                result = await work(transaction)
                await transaction.commit(write_concern)
            except CommandError as error:
                if error.code in _NUMBER_IS_TAKEN:
                    self._learn_number(error)
                else:
                    await self._end(transaction)
                    if TRANSIENT_TRANSACTION_ERROR not in error.labels:
                        raise
                if attempt == _TRANSIENT_ATTEMPTS_MAX:
                    raise
                logger.debug("Retrying a transaction of a migration", attempt=attempt, error=str(error))
            else:
                self.is_settled = True
                return result
            await backoff.pause()
            attempt += 1

    async def settle(self) -> None:
        """Return when no earlier transaction of this session is open, no matter which process began it."""

        async def read_nothing(transaction: Transaction) -> None:
            await transaction.run(_FENCE.db, {"find": _FENCE.collection, "limit": 1, "singleBatch": True})

        await self.transact(read_nothing)

    def _begin(self) -> Transaction:
        self._number += 1
        return Transaction(self._mongod, self._lsid, self._number)

    async def _end(self, transaction: Transaction) -> None:
        """Abort a failed transaction, so that it does not block others; then the session is settled."""
        with trio.CancelScope(shield=True), trio.move_on_after(_ABORT_SECONDS_MAX):
            try:
                await transaction.abort()
                self.is_settled = True
            except (CommandError, BackendError) as error:
                logger.info("Could not abort a transaction of a migration", error=str(error))

    def _learn_number(self, refusal: CommandError) -> None:
        """Continue above the numbers of another process that used this session, possibly on another primary."""
        newest = _NEWEST_NUMBER.search(refusal.message)
        if newest is not None:
            self._number = int(newest[1]) + _NUMBERS_LEFT_OUT


class ReservedSessions:
    """The reserved sessions on one mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self._sessions = [ReservedSession(mongod, session_id) for session_id in RESERVED_SESSION_IDS]
        self._free = list(self._sessions)
        self._waiting = trio.lowlevel.ParkingLot()
        self._settling = trio.Lock()

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Mark all sessions unsettled, because other primaries may have used higher numbers."""
        for session in self._sessions:
            session.is_settled = False

    def end_term(self) -> None:
        """Do nothing: a term leaves nothing to stop."""

    @property
    def waiting_count(self) -> int:
        """Number of tasks waiting for a session."""
        return len(self._waiting)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ReservedSession]:
        """Lend a session to the block, after waiting for a free one and settling interrupted ones if necessary."""
        session = await self._take()
        try:
            yield session
        finally:
            self._free.append(session)
            self._waiting.unpark()

    async def _take(self) -> ReservedSession:
        """Return a free session once all free ones are settled. Those in use are settled after their return."""
        while True:
            while not self._free:
                await self._waiting.park()
            async with self._settling:
                for session in [each for each in self._free if not each.is_settled]:
                    await session.settle()
                if self._free:
                    return self._free.pop()
