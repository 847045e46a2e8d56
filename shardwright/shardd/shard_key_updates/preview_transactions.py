"""The transactions in which updates are previewed, and which are never committed.

Such a transaction keeps other writers from its document until it is aborted, which mongod does by itself only after a
minute. So each is definitely ended, even if it is unknown whether it has begun: the statement of a cancelled task may
still be on its way. A transaction with a higher number ends the previous one, and prevents it from beginning later.

When a daemon is killed, the next one finds the transactions left open by the common prefix of their session ids.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import bson
import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.reserved_session_ids import RESERVED_ID_START
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import decode_document, decode_value, find
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("shardd.previews")

_SESSION_PREFIX: Final = RESERVED_ID_START + b"\1"
_RANDOM_BYTES: Final = 4
_END_SECONDS_MAX: Final = 1.0
_ADMIN: Final = "admin"


class _Session:
    """A session for one transaction at a time.

    Attributes:
        id: its ``lsid.id``.
        number: the transaction number of its last transaction.
    """

    def __init__(self, session_id: Binary, number: int = 0) -> None:
        self.id = session_id
        self.number = number

    def fields(self) -> dict[str, Any]:
        """The fields that each statement of the last transaction needs."""
        return {"lsid": {"id": self.id}, "txnNumber": Int64(self.number), "autocommit": False}


class PreviewTransaction:
    """One transaction under way. Statements are run one after the other."""

    def __init__(self, mongod: LocalMongod, session: _Session) -> None:
        session.number += 1
        self._mongod = mongod
        self._session = session
        self._has_begun = False
        self._is_known = True

    async def run(self, db: str, command: Mapping[str, Any]) -> bytes:
        """Run a statement; returns the raw reply. Since nothing comes of it, it may write though writes are blocked.

        Raises:
            CommandError: it failed.
            BackendError: mongod does not answer.
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
        """Abort it; if its last statement was not answered, also prevent it from beginning later.

        Raises:
            CommandError: it no longer exists; or mongod is not primary.
            BackendError: mongod does not answer.
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
        return  # it no longer exists, which is just as good


async def _overtake(mongod: LocalMongod, session: _Session) -> None:
    """End the last transaction of a session, or prevent it from beginning, by an empty one with a higher number."""
    other = PreviewTransaction(mongod, session)
    await other.run("shardwright", {"find": "fence", "limit": 1, "singleBatch": True})
    await _end_quietly(other)


def _new_id() -> Binary:
    return _session_id(secrets.token_bytes(_RANDOM_BYTES))


def _session_id(last_bytes: bytes) -> Binary:
    return Binary(_SESSION_PREFIX + last_bytes, UUID_SUBTYPE)
