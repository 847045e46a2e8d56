"""``config.migratedSessionHistory``: a recipient's record of retryable writes that other shards executed, and its pull.

The collection survives failover, and its documents expire with their sessions, thirty minutes after the last use.
Memory holds only the migrated sessions with their highest transaction number, which suffices for most retryable writes.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import bson
import trio
from bson.datetime_ms import DatetimeMS

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.reserved_sessions import check_reply
from shardwright.shardd.local_mongod.shard_key_index import all_documents
from shardwright.shardd.session_history.statement import (
    ExecutedStatement,
    SessionWrite,
    identity_of,
    range_of,
    unpack_int64,
)
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import encode_sequence, op_msg
from shardwright.wire.rawbson import array_documents, decode_document, encode_document, find, index, raw_document
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

logger = get_logger("shardd.session_history")

HISTORY: Final = Namespace("config", "migratedSessionHistory")

SESSION_SECONDS: Final = 30 * 60
"""The minimum time for which a mongod remembers writes (``TransactionRecordMinimumLifetimeMinutes``)."""

_REFRESH_MS: Final = 60_000
"""Maximum age of ``lastUse`` before it is updated."""

_SWEEP_SECONDS: Final = 60.0
_STATEMENTS_PER_WRITE: Final = 500
_BYTES_PER_WRITE: Final = 16 * 1024 * 1024
_MAJORITY: Final = {"w": "majority"}


class HistoryTable:
    """One shard's table, loaded from `begin_term` to `end_term`.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Attributes:
        sessions: the highest recorded transaction number of each migrated session, by its raw ``{id, uid}``.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.sessions: dict[bytes, int] = {}
        self._mongod = mongod
        self._last_use: dict[bytes, int] = {}
        self._has_index = False

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Load the sessions that migrated in while other members were primary."""
        self.end_term()
        newest = {"_id": "$_id.lsid", "txnNumber": {"$max": "$_id.txnNumber"}, "lastUse": {"$max": "$lastUse"}}
        aggregate = {"aggregate": HISTORY.collection, "pipeline": [{"$group": newest}], "cursor": {}}
        async with RawCursor(self._mongod.pool.exchange, HISTORY.db, aggregate) as cursor:
            async for batch in cursor:
                for raw in batch.documents():
                    self._learn_session(raw)
        nursery.start_soon(self._sweep)

    def end_term(self) -> None:
        """Discard the sessions; the next primary loads them."""
        self.sessions.clear()
        self._last_use.clear()
        self._has_index = False

    async def absorb(self, statements: Sequence[bytes]) -> None:
        """Persist statements received from a donor, and wait until a majority has them.

        Args:
            statements: documents of `ExecutedStatement.to_documents`; existing ones are replaced.

        Raises:
            CommandError: mongod refuses, or the majority did not confirm.
        """
        if not self._has_index:
            await self._create_index()
        waiting: list[bytes] = []
        size = 0
        for raw in statements:
            waiting.append(raw)
            size += len(raw)
            if len(waiting) == _STATEMENTS_PER_WRITE or size >= _BYTES_PER_WRITE:
                await self._save(waiting)
                waiting, size = [], 0
        await self._save(waiting)

    async def _save(self, statements: Sequence[bytes]) -> None:
        updates: list[bytes] = []
        learnt: list[tuple[SessionWrite, int]] = []
        for raw in statements:
            fields = index(raw)
            write, _ = identity_of(raw, fields)
            if write.txn_number < self.sessions.get(write.lsid, write.txn_number):
                continue  # the session has begun a newer write
            _, _, start, end = fields[b"_id"]
            query = {"_id": raw_document(raw[start:end])}
            updates.append(encode_document({"q": query, "u": raw_document(raw), "upsert": True}))
            learnt.append((write, unpack_int64(raw, fields[b"lastUse"][2])[0]))
        if updates:
            await self._upsert(updates)
        for write, last_use in learnt:
            self._learn(write, last_use)

    async def lookup(self, write: SessionWrite) -> dict[int, ExecutedStatement]:
        """Return the statements of a write that other shards executed, by statement id, and defer their expiry."""
        find = {"filter": range_of(write), "sort": {"_id": 1}}
        statements = ExecutedStatement.all_from_bson(await all_documents(self._mongod, HISTORY, find))
        if statements and _now() - self._last_use.get(write.lsid, 0) > _REFRESH_MS:
            await self._refresh(write)
        return {statement.statement_id: statement for statement in statements}

    async def _refresh(self, write: SessionWrite) -> None:
        now = _now()
        update = {"q": range_of(write), "u": {"$set": {"lastUse": DatetimeMS(now)}}, "multi": True}
        await self._mongod.write(HISTORY.db, {"update": HISTORY.collection, "updates": [update]})
        self._learn(write, now)

    def unused_for(self, seconds: float) -> list[bytes]:
        """Return the sessions without a recorded use for `seconds`."""
        limit = _now() - int(seconds * 1000)
        return [lsid for lsid, moment in self._last_use.items() if moment < limit]

    async def use(self, sessions: Iterable[bytes]) -> None:
        """Defer the expiry of sessions."""
        for lsid in sessions:
            if lsid in self.sessions:
                await self._refresh(SessionWrite(lsid, self.sessions[lsid]))

    def _learn(self, write: SessionWrite, last_use: int) -> None:
        lsid = write.lsid
        self.sessions[lsid] = max(write.txn_number, self.sessions.get(lsid, write.txn_number))
        self._last_use[lsid] = max(last_use, self._last_use.get(lsid, 0))

    def _learn_session(self, raw: bytes) -> None:
        """Record a session from a result document of `begin_term`."""
        fields = index(raw)
        lsid = fields[b"_id"]
        last_use = unpack_int64(raw, fields[b"lastUse"][2])[0]
        self._learn(SessionWrite(raw[lsid[2] : lsid[3]], decode_document(raw)["txnNumber"]), last_use)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep(_now())
            except (CommandError, BackendError) as error:
                logger.warning("Could not correct when sessions were last used", error=str(error))

    async def sweep(self, now: int) -> None:
        """Discard sessions as mongod expires their documents.

        Args:
            now: milliseconds since 1970. A session whose last use is later expires as if it were used now, because the
                clock has been set back since.
        """
        expired = now - int((SESSION_SECONDS + _SWEEP_SECONDS) * 1000)
        for lsid in [lsid for lsid, moment in self._last_use.items() if moment < expired]:
            del self.sessions[lsid], self._last_use[lsid]
        future = [lsid for lsid, moment in self._last_use.items() if moment > now + _REFRESH_MS]
        if future:
            used = {"q": {"lastUse": {"$gt": DatetimeMS(now)}}, "u": {"$set": {"lastUse": DatetimeMS(now)}}}
            update = {"update": HISTORY.collection, "updates": [{**used, "multi": True}]}
            await self._mongod.write(HISTORY.db, update)
            self._last_use.update(dict.fromkeys(future, now))

    async def _create_index(self) -> None:
        last_use: dict[str, Any] = {"key": {"lastUse": 1}, "name": "lastUse_1", "expireAfterSeconds": SESSION_SECONDS}
        create = {"createIndexes": HISTORY.collection, "indexes": [last_use], "writeConcern": _MAJORITY}
        await self._mongod.command(HISTORY.db, create)
        self._has_index = True

    async def _upsert(self, updates: list[bytes]) -> None:
        command = {"update": HISTORY.collection, "ordered": False, "writeConcern": _MAJORITY, "$db": HISTORY.db}
        frame = op_msg(
            bson.encode(command), request_id=next_request_id(), sections=encode_sequence(b"updates", updates)
        )
        check_reply(response_body(await self._mongod.pool.exchange(frame)))


def _now() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_POLL_SECONDS: Final = 0.25
"""Pause after the donor had nothing more to hand over."""


class HistoryPull:
    """The transfer of the session history to this shard's table during one attempt.

    Methods raise CommandError if the donor or the local mongod refuses, and BackendError if the latter does not answer.

    Args:
        ask: runs an idempotent command on the donor, given a database and the command; returns the raw body of the
            reply (`DonorConnection.command`). It should use a separate connection.
    """

    def __init__(
        self, table: HistoryTable, ask: Callable[[str, Mapping[str, Any]], Awaitable[bytes]], session_id: str
    ) -> None:
        self.statements = 0
        self._table = table
        self._ask = ask
        self._session_id = session_id
        self._number = 0
        self._pulling = trio.Lock()

    async def follow(self) -> None:
        """Pull until cancelled, which is safe at any point, or until the donor or the local mongod refuses."""
        while True:
            await self.drain()
            await trio.sleep(_POLL_SECONDS)

    async def drain(self) -> None:
        """Pull everything that the donor has now, and wait until a majority of this shard has it.

        If the donor blocks writes and has returned from `CloneSource.wait_followed`, the history is then complete.

        Raises:
            CommandError: the donor, or the local mongod, refused.
        """
        async with self._pulling:
            while await self._pull_batch():
                pass

    async def _pull_batch(self) -> bool:
        """Pull one batch; return whether it contained anything."""
        command = {"_getNextSessionMods": 1, "sessionId": self._session_id, "number": self._number}
        reply = await self._ask("admin", command)
        span = find(reply, b"oplog")
        if span is None:
            raise CommandError(ErrorCode.FailedToParse, "the reply to _getNextSessionMods has no 'oplog'")
        statements = array_documents(reply, span)
        await self._table.absorb(statements)
        self._number += 1
        self.statements += len(statements)
        return bool(statements)
