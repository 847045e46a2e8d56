"""The sessions reserved for what migrations write: cloned and changed documents, and the deletion of ranges.

Users' change streams must not see a document move. So all of it is written in transactions of sessions whose ids are
known beforehand: streams that are opened through a shard daemon leave out the events whose ``lsid.id`` is one of
`RESERVED_SESSION_IDS`. (A transaction also inserts at full speed where the same ``_id`` was deleted a moment ago.)

A transaction that was cut off, by a cancellation, a broken connection or the end of a former daemon, may still be under
way in mongod. Before anything else is written, each such session is *settled*: an empty transaction with a higher
number begins only when the one before it is over, and ends it if it is open. So what was given up does not come to
light behind the back of whoever cleans up after it.

Mongod takes no transactions on its own databases, of which ``config.system.sessions`` can be sharded; and no user's
change stream covers them. There, the same is done without.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import REPLICATION_DATA, LocalMongod
from shardwright.daemon.sidecar.reply_term import term_of_body
from shardwright.daemon.sidecar.term_scope import check_term, term_of_task
from shardwright.shardd.local_mongod.empty_timestamps import restoring_updates
from shardwright.shardd.local_mongod.raw_replies import check_reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import encode_sequence, op_msg
from shardwright.wire.rawbson import decode_document, encode_document, raw_document
from shardwright.wire.transport.client import response_body

logger = get_logger("shardd.reserved_sessions")

Result = TypeVar("Result")

RESERVED_SESSION_IDS: Final = tuple(UUID(bytes=b"Shardwright\0\0\0\0" + bytes((number,))) for number in range(8))
"""The ids of the reserved sessions, the same on all shards: the name of the product and a number."""

LOCAL_WRITE_CONCERN: Final[Mapping[str, Any]] = {"w": 1}
"""Not to wait for others; the default of mongod is the majority, which costs a flush of the journal each time."""

_FENCE: Final = Namespace("shardwright", "fence")
"""A collection that need not exist: reading it is what an empty transaction does."""

_ENDED: Final = frozenset({ErrorCode.NoSuchTransaction, ErrorCode.TransactionCommitted})
_NUMBER_IS_TAKEN: Final = frozenset({ErrorCode.TransactionTooOld, ErrorCode.ConflictingOperationInProgress})
_TRANSIENT: Final = "TransientTransactionError"
_TRANSIENT_ATTEMPTS_MAX: Final = 10
_BACKOFF_SECONDS: Final = 0.01
_ABORT_SECONDS_MAX: Final = 1.0


class Transaction:
    """One transaction under way. Statements are run one after the other."""

    def __init__(self, mongod: LocalMongod, lsid: Mapping[str, Any], number: int) -> None:
        self._mongod = mongod
        self._fields: dict[str, Any] = {"lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
        self._has_begun = False

    async def run(
        self, db: str, body: Mapping[str, Any], sequence: tuple[bytes, Sequence[bytes]] | None = None
    ) -> bytes:
        """Run one statement; returns the raw body of the reply.

        A task that works for a term has it run in no other one. So no transaction is committed in another term than
        that of its statements: mongod aborts those that are open when it steps down.

        Args:
            db: the database.
            body: the command less session and transaction fields.
            sequence: name and raw documents of an argument that is sent beside the body.

        Raises:
            CommandError: the statement, or one of its items, failed; InterruptedDueToReplStateChange, the term is over;
                the transaction can only be aborted.
            BackendError: mongod does not answer.
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
        command = bson.encode({**body, **start, **self._fields, REPLICATION_DATA: 1, "$db": db})
        sections = b"" if sequence is None else encode_sequence(*sequence)
        frame = op_msg(command, request_id=next_request_id(), sections=sections)
        return response_body(await self._mongod.pool.exchange(frame))

    async def commit(self, write_concern: Mapping[str, Any]) -> None:
        """Make it last.

        Raises:
            CommandError: it could not be committed; WriteConcernFailed, it is, but not where it was asked to be.
            BackendError: mongod does not answer.
        """
        if self._has_begun:
            await self.run("admin", {"commitTransaction": 1, "writeConcern": write_concern})

    async def abort(self) -> None:
        """Undo it; one that has ended, even by a commit, is fine.

        Raises:
            CommandError: it could not be aborted.
            BackendError: mongod does not answer.
        """
        if not self._has_begun:
            return
        try:
            # In another term, too: there is nothing to be done for it.
            check_reply(await self._exchange("admin", {"abortTransaction": 1}))
        except CommandError as error:
            if error.code not in _ENDED:
                raise


class ReservedSession:
    """One of the reserved sessions, lent to one task."""

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
        """Insert raw documents, all or none, just as they are and whatever the collection's validator says of them.

        Raises:
            CommandError: DuplicateKey and whatever else an insert may fail with; WriteConcernFailed, they are inserted.
            BackendError: mongod does not answer; they may be inserted or not.
        """

        if namespace.is_internal:
            operations = [{"op": "i", "ns": str(namespace), "o": raw_document(document)} for document in documents]
            await self._mongod.write("admin", {"applyOps": operations, "writeConcern": write_concern})
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
        """Run the statements ``{q, limit, …}`` of a ``delete``, all or none; returns how many documents went.

        Raises:
            CommandError: a statement failed; WriteConcernFailed, they have been run.
            BackendError: mongod does not answer; they may have been run or not.
        """
        delete = {"delete": namespace.collection, "deletes": statements}
        (reply,) = await self.run(namespace.db, [delete], write_concern=write_concern)
        return int(reply["n"])

    async def run(
        self, db: str, bodies: Sequence[Mapping[str, Any]], *, write_concern: Mapping[str, Any] = LOCAL_WRITE_CONCERN
    ) -> list[dict[str, Any]]:
        """Run several statements in one transaction; returns the decoded replies.

        Raises:
            CommandError: a statement failed; WriteConcernFailed, they have been run.
            BackendError: mongod does not answer; they may have been run or not.
        """

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
        """Have ``work`` run statements in a transaction and commit it; returns what ``work`` does.

        What fails for a passing reason (``TransientTransactionError``), as on a write conflict, is done again.

        Raises:
            CommandError: a statement failed; WriteConcernFailed, it is committed, but not where it was asked to be.
            BackendError: mongod does not answer; it may be committed or not.
        """
        attempt = 1
        while True:
            transaction = self._begin()
            self.is_settled = False
            try:
                result = await work(transaction)
                await transaction.commit(write_concern)
            except CommandError as error:
                await self._end(transaction)
                if error.code in _NUMBER_IS_TAKEN:
                    await self._learn_number(leap=1 << attempt)
                elif _TRANSIENT not in error.labels:
                    raise
                if attempt == _TRANSIENT_ATTEMPTS_MAX:
                    raise
                logger.debug("Retrying a transaction of a migration", attempt=attempt, error=str(error))
            else:
                self.is_settled = True
                return result
            await trio.sleep(_BACKOFF_SECONDS * attempt)
            attempt += 1

    async def settle(self) -> None:
        """Return once no transaction that was begun in this session, by whomever, is under way any more.

        Raises:
            CommandError: mongod is not primary.
            BackendError: mongod does not answer.
        """

        async def read_nothing(transaction: Transaction) -> None:
            await transaction.run(_FENCE.db, {"find": _FENCE.collection, "limit": 1, "singleBatch": True})

        await self.transact(read_nothing)

    def _begin(self) -> Transaction:
        # Numbers that rise with the clock rise across fail-over and restart, too.
        self._number = max(self._number + 1, time.time_ns() // 1_000)
        return Transaction(self._mongod, self._lsid, self._number)

    async def _end(self, transaction: Transaction) -> None:
        """Abort what has failed, so that it does not keep others waiting; settled is what mongod says has ended."""
        with trio.CancelScope(shield=True), trio.move_on_after(_ABORT_SECONDS_MAX):
            try:
                await transaction.abort()
                self.is_settled = True
            except (CommandError, BackendError) as error:
                logger.info("A transaction of a migration remains to be settled", error=str(error))

    async def _learn_number(self, leap: int) -> None:
        """Another primary, whose clock was ahead, has used this session: begin above its numbers.

        Args:
            leap: how far. Stored is the last number that wrote; each time it was settled since has taken another.
        """
        find_number = {"find": "transactions", "filter": {"_id.id": self._lsid["id"]}, "singleBatch": True}
        reply = await self._mongod.command("config", find_number)
        for entry in reply["cursor"]["firstBatch"]:
            self._number = max(self._number, entry["txnNum"] + leap)


class ReservedSessions:
    """All reserved sessions, on one mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self._sessions = [ReservedSession(mongod, session_id) for session_id in RESERVED_SESSION_IDS]
        self._free = list(self._sessions)
        self._waiting = trio.lowlevel.ParkingLot()
        self._settling = trio.Lock()

    @property
    def waiting_count(self) -> int:
        """How many wait for a session."""
        return len(self._waiting)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ReservedSession]:
        """A session that nobody else uses now, waiting for one if need be.

        Raises:
            CommandError: one that was cut off could not be settled.
            BackendError: likewise, mongod does not answer.
        """
        session = await self._take()
        try:
            yield session
        finally:
            self._free.append(session)
            self._waiting.unpark()

    async def _take(self) -> ReservedSession:
        """A free session, once all that are free are settled. Those in use are looked at when they come back."""
        while True:
            while not self._free:
                await self._waiting.park()
            async with self._settling:
                for session in [each for each in self._free if not each.is_settled]:
                    await session.settle()
                if self._free:
                    return self._free.pop()
