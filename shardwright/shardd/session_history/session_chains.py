"""The retryable writes recorded in ``config.transactions``, read from the oplog.

A session's record points at its last statement, which points at the previous one with the same transaction number, and
so on. Following each chain would take a query per statement. Instead, one scan reads a section of the oplog with the
neighbouring positions of many sessions. It scans forward, because only then does mongod find the beginning without
reading everything before it. The first entry of each session shows whether earlier entries precede the section; the
next round reads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.term_fence import FENCE_SESSION_ID
from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.local_mongod.shard_key_index import find_cursor
from shardwright.shardd.session_history.oplog_history import HistoryEntry, HistoryReader
from shardwright.shardd.session_history.statement import (
    ChildTransaction,
    SessionWrite,
    incomplete_history,
    session_of,
    unpack_int64,
)
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import decode_document, find, index, raw_document

OPLOG: Final = Namespace("local", "oplog.rs")
_TRANSACTIONS: Final = Namespace("config", "transactions")
_MAJORITY: Final = {"level": "majority"}

_SESSIONS_PER_ROUND: Final = 20_000
"""Number of session positions held in memory, some 300 bytes each."""

_SESSIONS_PER_READ: Final = 1_000

_GAP_ENTRIES_MAX: Final = 500
"""Positions further apart are read by separate scans.

mongod takes about as long to find the beginning of a section as to read this many entries. Within a second, the
difference of two times is the number of entries between them.
"""

_SESSIONS_PER_SCAN: Final = 5_000

ENTRIES_PER_READ: Final = 500
"""Number of entries processed at a time, which blocks all other tasks for some 10 ms."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A session whose history has yet to be read from a position backwards.

    Attributes:
        write: the session and its last transaction number; an internal transaction's own.
        position: the time of the newest unread entry, packed.
        last_use: time of the session's last write, in milliseconds since 1970.
        executes: the retryable write; differs from ``write`` if an internal transaction executes it.
        is_continued: whether newer entries have been read.
    """

    write: SessionWrite
    position: int
    last_use: int
    executes: SessionWrite
    is_continued: bool = False

    @property
    def is_child(self) -> bool:
        """Whether an internal transaction executes the write."""
        return self.executes is not self.write

    def incomplete(self) -> HistoryEntry:
        """Return the entry that marks the history as partly gone from the oplog."""
        return HistoryEntry(self.write, self.position, 0, (incomplete_history(self.executes, self.last_use),))

    @property
    def scanned_from(self) -> int:
        """Beginning of a scan, further back for a continued session, whose statements tend to be adjacent."""
        if not self.is_continued:
            return self.position
        return max(self.position - 2 * _GAP_ENTRIES_MAX, self.position >> 32 << 32)


class SessionChains:
    """All retryable writes whose retries the local mongod could still answer, as far as they concern a migration."""

    def __init__(self, mongod: LocalMongod, reader: HistoryReader) -> None:
        self.is_exhausted = False
        self._mongod = mongod
        self._reader = reader
        options = {"batchSize": _SESSIONS_PER_READ}
        self._sessions = find_cursor(mongod, _TRANSACTIONS, _find_sessions(), options=options)
        self._pending: list[tuple[int, SessionWrite, _Pending]] = []  # a heap, the newest first
        self._scan: _Scan | None = None

    async def next_entries(self) -> list[HistoryEntry]:
        """Return the next entries with statements; none only at the end.

        Raises:
            CommandError: mongod refuses, or a cursor was killed.
            BackendError: mongod does not answer.
        """
        while not self.is_exhausted:
            if self._scan is not None:
                entries = await self._scan.next_entries()
                if self._scan.is_exhausted:
                    for each in self._scan.earlier():
                        self._add(each)
                    self._scan = None
            elif self._pending:
                entries = []
                self._scan = _Scan(self._mongod, self._reader, self._take_neighbours())
            else:
                entries = await self._next_sessions()
            if entries:
                return entries
        return []

    async def close(self) -> None:
        """Close the cursors, which ends reading."""
        await self._sessions.close()
        if self._scan is not None:
            await self._scan.close()

    async def _next_sessions(self) -> list[HistoryEntry]:
        """Add sessions to the pending ones; return entries for sessions whose history cannot be read."""
        entries: list[HistoryEntry] = []
        while len(self._pending) < _SESSIONS_PER_ROUND:
            batch = await self._sessions.next_documents()
            if not batch:
                self.is_exhausted = not self._pending
                break
            for record in batch:
                pending = _pending(record)
                if pending is None:
                    continue
                if find(record, b"state") is not None and not pending.is_child:  # a client's transaction
                    entries.append(pending.incomplete())
                else:
                    self._add(pending)
        return entries

    def _take_neighbours(self) -> list[_Pending]:
        """Remove from the pending sessions the newest ones whose positions are close together."""
        taken = [heappop(self._pending)[-1]]
        while self._pending and len(taken) < _SESSIONS_PER_SCAN:
            if taken[-1].scanned_from - self._pending[0][-1].position > _GAP_ENTRIES_MAX:
                break
            taken.append(heappop(self._pending)[-1])
        return taken

    def _add(self, pending: _Pending) -> None:
        heappush(self._pending, (-pending.position, pending.write, pending))


class _Scan:
    """One scan of a section of the oplog for the entries of some sessions."""

    def __init__(self, mongod: LocalMongod, reader: HistoryReader, sessions: list[_Pending]) -> None:
        self.is_exhausted = False
        self._reader = reader
        self._sessions = {each.write: each for each in sessions}
        self._previous: dict[SessionWrite, int] = {}
        newest, oldest = sessions[0].position, min(each.scanned_from for each in sessions)
        time = {"$gte": unpack_timestamp(oldest), "$lte": unpack_timestamp(newest)}
        lsids = [raw_document(each.write.lsid) for each in sessions]
        find = {"filter": {"ts": time, "lsid": {"$in": lsids}}, "readConcern": _MAJORITY}
        self._cursor = find_cursor(mongod, OPLOG, find, options={"batchSize": ENTRIES_PER_READ})

    async def next_entries(self) -> list[HistoryEntry]:
        """Return the entries of the next batch; at the end, incomplete-history entries for the missing sessions."""
        batch = await self._cursor.next_documents()
        if not batch:
            self.is_exhausted = True
            lost = [each for each in self._sessions.values() if each.write not in self._previous]
            return [each.incomplete() for each in lost]
        return list(self._entries(batch))

    async def close(self) -> None:
        await self._cursor.close()

    def _entries(self, batch: list[bytes]) -> Iterator[HistoryEntry]:
        for raw in batch:
            entry = self._reader.read(raw)
            session = None if entry is None else self._sessions.get(entry.write)
            if entry is None or session is None or entry.time > session.position:
                continue
            self._previous.setdefault(entry.write, entry.previous)
            if entry.statements:
                is_last = entry.time == session.position and not session.is_continued
                yield entry if is_last or entry.is_child else entry.without_document()

    def earlier(self) -> list[_Pending]:
        """Return, after the scan, the sessions whose history continues before the section."""
        return [
            replace(self._sessions[write], position=previous, is_continued=True)
            for write, previous in self._previous.items()
            if previous
        ]


def _pending(record: bytes) -> _Pending | None:
    """Parse a document of ``config.transactions``; None if it does not record a retryable write.

    A prepared transaction is not one yet: the oplog follower will receive its commit.
    """
    fields = index(record)
    document = decode_document(record)
    number = document["txnNum"]
    position = pack_timestamp(document["lastWriteOpTime"]["ts"])
    last_use = unpack_int64(record, fields[b"lastWriteDate"][2])[0]
    session = session_of(record, fields[b"_id"])
    if session is not None:
        write = SessionWrite(session, number)
        return _Pending(write, position, last_use, write)
    child = ChildTransaction.read(record, fields[b"_id"], number)
    if child is None or document.get("state") != "committed":
        return None
    return _Pending(child.own, position, last_use, child.write)


def _find_sessions() -> dict[str, Any]:
    reserved = [bson.Binary.from_uuid(each) for each in (*RESERVED_SESSION_IDS, FENCE_SESSION_ID)]
    return {
        "filter": {"_id.id": {"$nin": reserved}},
        "projection": {"txnNum": 1, "lastWriteOpTime": 1, "lastWriteDate": 1, "state": 1},
        "readConcern": _MAJORITY,
    }
