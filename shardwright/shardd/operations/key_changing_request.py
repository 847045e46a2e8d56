"""A request with updates that may change shard keys. Each is previewed, checked, and executed as previewed.

Updates are previewed in a transaction on the local mongod that is never committed (`UpdatePreviews`). Such a
transaction keeps other writers from its document until it is aborted, which mongod does by itself only after a minute.
So each is ended reliably, even if it is unknown whether it has begun: the statement of a cancelled task may still
arrive. A transaction with a higher number ends the previous one, and prevents it from beginning later. After a daemon
is killed, the next one finds the open transactions by the common prefix of their session ids.
"""

import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import bson
import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.daemon.users import RESERVED_ID_START
from shardwright.shardd.exchange.term_exchange import TermExchange, seconds_allowed
from shardwright.shardd.operations.key_changes import KeyChange, is_collated
from shardwright.shardd.operations.previewed_updates import FINDING_NOTHING, Preview, only_with_id
from shardwright.shardd.session_history.statement import session_of
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, MAY_CHANGE_OWNER
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import check_size
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    array_documents,
    decode_document,
    decode_value,
    encode_document,
    find,
    index,
    raw_document,
    wrap_value,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("shardd.previews")

_SESSION_PREFIX: Final = RESERVED_ID_START + b"\1"
_RANDOM_BYTES: Final = 4
_END_SECONDS_MAX: Final = 1.0
_ADMIN: Final = "admin"

_ATTEMPTS_MAX: Final = 100
"""Maximum number of previews of one update; each repetition means that another writer has made progress."""

_OF_NO_STATEMENT: Final = 2**31 - 1
"""A statement id that no write has."""

Reply = TypeVar("Reply", contravariant=True)
Made = TypeVar("Made")


class _Session:
    """A session for one transaction at a time, with the transaction number of its last one."""

    def __init__(self, session_id: Binary, number: int = 0) -> None:
        self.id = session_id
        self.number = number

    def fields(self) -> dict[str, Any]:
        """Return the fields that each statement of the last transaction needs."""
        return {"lsid": {"id": self.id}, "txnNumber": Int64(self.number), "autocommit": False}


class PreviewTransaction:
    """One open transaction. Its statements run one after the other.

    Methods that access mongod raise BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod, session: _Session) -> None:
        session.number += 1
        self._mongod = mongod
        self._session = session
        self._has_begun = False
        self._is_known = True

    async def run(self, db: str, command: Mapping[str, Any]) -> bytes:
        """Run a statement and return the raw reply, or raise its error.

        Never committed, it may write while writes are blocked.
        """
        start = {} if self._has_begun else {"startTransaction": True}
        self._has_begun, self._is_known = True, False
        body = bson.encode({**command, **start, **self._session.fields(), BYPASS: True, "$db": db})
        reply = response_body(await self._mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
        self._is_known = True
        ok = find(reply, b"ok")
        if ok is None or not decode_value(reply, ok):
            failure: dict[str, Any] = decode_document(reply)
            raise CommandError.from_reply(failure)
        return reply

    async def end(self) -> None:
        """Abort the transaction; if its last statement was not answered, also prevent it from beginning later.

        Raises:
            CommandError: it no longer exists; or mongod is not primary.
        """
        if not self._is_known:
            await _overtake(self._mongod, self._session)
        elif self._has_begun:
            await self.run(_ADMIN, {"abortTransaction": 1})


class PreviewTransactions:
    """The preview transactions on one mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._free: list[_Session] = []

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[PreviewTransaction]:
        """Begin a transaction that is aborted after the block."""
        session = self._free.pop() if self._free else _Session(_new_id())
        transaction = PreviewTransaction(self._mongod, session)
        try:
            yield transaction
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(_END_SECONDS_MAX):
                await _end_quietly(transaction)
            self._free.append(session)

    async def end_abandoned(self) -> None:
        """End the transactions that a killed daemon left open.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        ids = {"$gte": _session_id(bytes(_RANDOM_BYTES)), "$lte": _session_id(b"\xff" * _RANDOM_BYTES)}
        # Idle ones are listed as sessions, the others as operations.
        operations = {"$currentOp": {"allUsers": True, "idleSessions": True}}
        pipeline = [operations, {"$match": {"lsid.id": ids, "transaction": {"$exists": True}}}]
        listing = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
        for operation in await DecodedCursor(self._mongod.command, _ADMIN, listing).all_documents():
            number = int(operation["transaction"]["parameters"]["txnNumber"])
            logger.info("Ending a preview transaction of a former process", number=number)
            await _overtake(self._mongod, _Session(Binary(operation["lsid"]["id"], UUID_SUBTYPE), number))


async def _end_quietly(transaction: PreviewTransaction) -> None:
    try:
        await transaction.end()
    except (CommandError, BackendError):
        return  # it no longer exists


async def _overtake(mongod: LocalMongod, session: _Session) -> None:
    """End a session's last transaction, or prevent it from beginning, by an empty one with a higher number."""
    other = PreviewTransaction(mongod, session)
    await other.run("shardwright", {"find": "fence", "limit": 1, "singleBatch": True})
    await _end_quietly(other)


def _new_id() -> Binary:
    return _session_id(secrets.token_bytes(_RANDOM_BYTES))


def _session_id(last_bytes: bytes) -> Binary:
    return Binary(_SESSION_PREFIX + last_bytes, UUID_SUBTYPE)


_CONFLICT_SECONDS_MAX: Final = 120.0
"""Maximum lifetime of a transaction: ``transactionLifetimeLimitSeconds``, plus the interval of mongod's check for it.
"""

_ABANDONED_SECONDS: Final = 1.0
"""Age of a conflict from which it is attributed to an abandoned earlier attempt."""

CAUSED_BY: Final = "Plan executor error during findAndModify :: caused by :: "
"""The prefix that mongod gives to errors of a ``findAndModify`` but not of an ``update``."""


class UpdatePreviews:
    """Previews on one mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self.transactions = PreviewTransactions(mongod)

    async def preview(
        self,
        namespace: Namespace,
        modification: Mapping[str, Any],
        *,
        seconds_max: float = math.inf,
        end_former_attempts: Callable[[], Awaitable[None]] | None = None,
    ) -> Preview:
        """Preview a ``findAndModify``, waiting for other transactions that conflict with it.

        Args:
            modification: its arguments ``query``, ``update``, ``upsert``, ``sort`` and so on.
            end_former_attempts: ends earlier transactions of the same write, if there are any.

        Raises:
            CommandError: the ``findAndModify`` would fail; MaxTimeMSExpired; WriteConflict and the like, other
                transactions conflicted with it for longer than any of them can live.
        """
        began, backoff = trio.current_time(), Backoff(first_seconds=0.01, seconds_max=0.1)
        while True:
            try:
                async with self.transactions.begin() as transaction:
                    return await _preview(transaction, namespace, modification)
            except CommandError as error:
                is_conflict = TRANSIENT_TRANSACTION_ERROR in error.labels and not _concerns_role(error)
                # The transaction is invisible to the client.
                error.labels = tuple(label for label in error.labels if label != TRANSIENT_TRANSACTION_ERROR)
                waited = trio.current_time() - began
                if not is_conflict or waited > _CONFLICT_SECONDS_MAX:
                    raise
                if waited > seconds_max:
                    raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from error
                if end_former_attempts is not None and waited > _ABANDONED_SECONDS:
                    await end_former_attempts()
                    end_former_attempts = None
            # Usually another writer has just changed the document, and its transaction is over in a moment.
            await backoff.pause()


async def _preview(transaction: PreviewTransaction, namespace: Namespace, modification: Mapping[str, Any]) -> Preview:
    reply = await transaction.run(namespace.db, {"findAndModify": namespace.collection, **modification, "new": False})
    fields = index(reply)
    value = fields.get(b"value")
    before = reply[value[2] : value[3]] if value is not None and value[0] == OBJECT else None
    identity = before if before is not None else _upserted(reply, fields)
    if identity is None:
        return Preview(None, None)
    query = raw_document(only_with_id(EMPTY_DOCUMENT, identity, is_collated=True))
    found = await transaction.run(namespace.db, {"find": namespace.collection, "filter": query})
    cursor = index(found, index(found)[b"cursor"][2])
    return Preview(before, array_documents(found, cursor[b"firstBatch"])[0])


def _concerns_role(error: CommandError) -> bool:
    """Whether mongod refuses all writes at present, so that waiting for other transactions does not help."""
    return any(has_category(error.code, each) for each in (Category.NOT_PRIMARY, Category.SHUTDOWN))


def _upserted(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """Return ``{_id}`` of the document that a ``findAndModify`` inserted, if any."""
    upserted = find(reply, b"upserted", fields[b"lastErrorObject"][2])
    return None if upserted is None else wrap_value(upserted[0], reply[upserted[2] : upserted[3]], b"_id")


class OvertakenTest(Protocol[Reply]):
    """A test of a reply for an intervening write (see `shardd.operations.previewed_updates`)."""

    def __call__(self, preview: Preview, reply: Reply, /, *, is_last: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeyChangingRequest:
    """An ``update`` or a ``findAndModify`` on a sharded collection.

    Attributes:
        pattern: the part of the shard key that can change.
        may_change_key: whether the request's transaction, if any, may change shard keys.
    """

    previews: UpdatePreviews
    mongod: LocalMongod
    upstream: TermExchange
    request: Request
    namespace: Namespace
    table: RoutingTable
    pattern: ShardKeyPattern
    shard: str
    may_change_key: bool = True

    @property
    def is_retryable(self) -> bool:
        """Whether it has a transaction number."""
        return b"txnNumber" in self.request.fields

    @property
    def is_in_transaction(self) -> bool:
        """Whether it is part of a client's transaction."""
        return AUTOCOMMIT in self.request.fields

    @property
    def may_change_owner(self) -> bool:
        """Whether its sender inserts a document on its new shard."""
        return MAY_CHANGE_OWNER in self.request.fields

    def is_collated(self, document: bytes, fields: Mapping[bytes, Span]) -> bool:
        """Whether a collation other than the simple one is in force for an update with these fields."""
        return is_collated(document, fields.get(b"collation"), self.table.collection.default_collation)

    async def has_begun(self) -> bool:
        """Whether the request is a retry that mongod has already executed in part, maybe in a transaction."""
        lsid = self.request.fields.get(b"lsid")
        session = None if lsid is None or not self.is_retryable else session_of(self.request.body, lsid)
        if session is None:
            return False
        number = Int64(self.request.get(b"txnNumber"))
        of_session, of_child = ({name: raw_document(session)} for name in ("_id", "parentLsid"))
        begun = {"$or": [{**of_session, "txnNum": number}, {**of_child, "_id.txnNumber": number}]}
        reply = await self.mongod.command("config", {"find": "transactions", "filter": begun, "limit": 1})
        return bool(reply["cursor"]["firstBatch"])

    def inserts_under_other_key(self, query: bytes, preview: Preview) -> bool:
        """Whether a retryable upsert inserts a document with another shard key than the one that routed it."""
        if not self.is_retryable or preview.before is not None or preview.after is None:
            return False
        pattern = self.table.key_pattern
        routed_by = exact_shard_key(query, pattern)
        return routed_by is None or pattern.key_bytes(routed_by) != pattern.key_bytes_of_document(preview.after)

    async def end_former_attempts(self) -> None:
        """Make mongod abort the transactions of earlier attempts at this retryable write, except prepared ones.

        mongod aborts them when it receives any other statement with the transaction number. The router that began such
        an attempt may be gone. The retry would then wait for the document until the transaction's lifetime is over.
        """
        carried = {name.decode(): self.request.get(name) for name in (b"lsid", b"txnNumber")}
        statement = {"update": self.namespace.collection, "updates": [FINDING_NOTHING], "stmtIds": [_OF_NO_STATEMENT]}
        body = encode_document({**statement, **carried, "$db": self.namespace.db})
        await self.exchange(body, next_request_id())

    async def exchange(self, body: bytes, request_id: int) -> bytes:
        """Return mongod's reply frame to a command on the client's connection; BSONObjectTooLarge if too long."""
        check_size(len(body))
        frame = await self.upstream.forward(op_msg(body, request_id=request_id), 0)
        assert frame is not None
        return frame

    async def execute_as_previewed(
        self,
        query: bytes,
        modification: Mapping[str, Any],
        make: Callable[[Preview], Awaitable[Made]],
        is_overtaken: OvertakenTest[Made],
        *,
        is_multi: bool = False,
        supplied: bytes | None = None,
    ) -> Made:
        """Update or upsert one document, with a new preview whenever another writer was faster.

        Args:
            modification: the arguments of the ``findAndModify`` that has the same effect.
            is_multi: whether the update covers all matching documents.
            supplied: the document to insert if none matches, None if ``modification`` makes it.

        Returns:
            The result of the last ``make``.

        Raises:
            CommandError: the change is not allowed, or fails; WriteConflict, other writers keep changing the document.
        """
        change = KeyChange(self.table, self.shard, query, is_multi=is_multi, is_retryable=self.is_retryable)
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            preview = await self.previews.preview(
                self.namespace,
                modification,
                seconds_max=seconds_allowed(self.request),
                end_former_attempts=self.end_former_attempts if self.is_retryable else None,
            )
            if preview.before is None and supplied is not None:
                preview = Preview(None, supplied)
            change.check(preview)
            made = await make(preview)
            if not is_overtaken(preview, made, is_last=not attempts_left):
                return made
        raise CommandError(
            ErrorCode.WriteConflict,
            f"other writers kept changing a document of {self.namespace} whose shard key was to be updated",
        )
