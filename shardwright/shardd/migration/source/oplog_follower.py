"""Following the oplog of the local mongod for what was written to one collection.

Only entries that a majority has are seen, so that nothing is handed out that could be rolled back, and a read at the
majority after an entry was seen finds what it wrote. The cursor asks for the resume tokens that mongod has for the
oplog (``$_requestResumeToken``): so it is known how far mongod has looked even when it had nothing to send.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.raw_cursor import RawBatch, RawCursor
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.migration.source.oplog_entries import MARKER_FIELD, EntryKind, OplogEntry, WatchedCollection
from shardwright.shardd.migration.source.touched_ids import TouchedIds
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.timestamps import pack_timestamp, unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

OPLOG: Final = Namespace("local", "oplog.rs")

_AWAIT_MS: Final = 1_000
"""How long mongod waits for an entry before it says at least how far it has looked."""

_ENTRIES_MAX: Final = 1_000
"""How many entries are taken in at a time; all others wait for some 10 ms then."""

_FORWARD: Final = {"hint": {"$natural": 1}}


class OplogFollower:
    """Queues the ids of touched documents.

    Args:
        mongod: the mongod of this daemon.
        watched: which entries count.
        touched: where ids are queued.
        session_id: of the migration.
        observe: see `shardd.migration.source.clone_source.CloneSource`.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        watched: WatchedCollection,
        touched: TouchedIds,
        session_id: str,
        observe: Callable[[bytes], None],
    ) -> None:
        self._mongod = mongod
        self._watched = watched
        self._touched = touched
        self._session_id = session_id
        self._observe = observe
        self._cursor: RawCursor | None = None
        self._progress = trio.lowlevel.ParkingLot()
        self.followed = 0

    async def open(self, position: Timestamp | None) -> Timestamp:
        """Open the cursor.

        Args:
            position: what is after this time is followed; by default what is after the present.

        Returns:
            The position.

        Raises:
            CommandError: CappedPositionLost, the oplog does not reach back so far; NotWritablePrimary.
        """
        # Whatever is read at the majority from here on includes what was written up to now, by former primaries too.
        present = await self._write_marker()
        self.followed = pack_timestamp(position or present)
        start = unpack_timestamp(self.followed)
        self._cursor = RawCursor(self._mongod, await self._mongod.pool.borrow(), OPLOG)
        await self._cursor.find(
            {
                "filter": {"ts": {"$gt": start}, **self._watched.filter()},
                "tailable": True,
                "awaitData": True,
                "batchSize": 0,
                "readConcern": {"level": "majority"},
                "$_requestResumeToken": True,
                **_FORWARD,
            }
        )
        # Asked once the cursor is there: what it has begun with is not taken from it without its noticing.
        oldest = await self._find_entry({}, {"projection": {"ts": 1}})
        if oldest is None or oldest["ts"] > start:
            raise CommandError(
                ErrorCode.CappedPositionLost,
                f"the oplog does not reach back to {start}, from where it is to be followed",
            )
        return start

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            CommandError: the migration cannot go on; see `CloneSource.run`.
            BackendError: the mongod has gone.
        """
        cursor = self._cursor
        assert cursor is not None, "opened"
        while cursor.id:
            await self._read(await cursor.more(maxTimeMS=_AWAIT_MS, batchSize=_ENTRIES_MAX))
        raise CommandError(ErrorCode.CursorNotFound, "the cursor on the oplog ended")

    async def wait_followed(self, time: Timestamp, check: Callable[[], None]) -> None:
        """Return when everything up to a time has been read.

        Args:
            time: of an entry that has been written already.
            check: called again after each wait; raises when nothing more will be read.

        Raises:
            CommandError: of ``check``; NotWritablePrimary.
        """
        wanted = pack_timestamp(time)
        if self.followed < wanted:
            await self._write_marker()  # so that there is something to be sent
        while self.followed < wanted:
            check()
            await self._progress.park()

    async def close(self) -> None:
        """End the cursor, also when cancelled, and let nobody wait any longer."""
        self._progress.unpark_all()
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            await cursor.close()

    async def _write_marker(self) -> Timestamp:
        note = {"appendOplogNote": 1, "data": {MARKER_FIELD: self._session_id}, "writeConcern": MAJORITY}
        reply = await self._mongod.write("admin", note)
        time: Timestamp = reply["operationTime"]
        return time

    async def _read(self, batch: RawBatch) -> None:
        """Take in one batch.

        What mongod has looked at may be more than what was sent in a batch that became too long; so its word counts
        only when nothing was sent.
        """
        for raw in batch.documents():
            entry = self._watched.read(raw)
            if entry.kind is EntryKind.COMMIT:
                await self._read_transaction(entry)
            elif entry.kind is not EntryKind.OTHER:
                self._take(entry, entry.time)
            self.followed = entry.time
        if batch.is_empty:
            self.followed = max(self.followed, batch.scanned)
        self._progress.unpark_all()

    def _take(self, entry: OplogEntry, committed: int) -> None:
        if entry.kind is not EntryKind.NOOP:
            for element in self._watched.touched_by(entry):
                self._touched.add(element, committed)
        self._observe(entry.raw)

    async def _read_transaction(self, last: OplogEntry) -> None:
        """Take in a transaction that has committed, however long ago it began: its entries point back one at another.

        First only the way back is read, then the entries from the first on, and of them only those that matter: there
        is never more than one in memory.
        """
        times = []
        time = last.previous
        while time:
            times.append(time)
            entry = await self._find_entry(_at(time), {"projection": {"prevOpTime": 1}})
            if entry is None:
                raise CommandError(
                    ErrorCode.CappedPositionLost,
                    f"the oplog does not reach back to {unpack_timestamp(time)}, where a transaction wrote that has "
                    "committed now",
                )
            time = pack_timestamp(entry["prevOpTime"]["ts"])
        for time in reversed(times):
            raw = await self._find_operations(time)
            if raw is not None:
                self._take(self._watched.read(raw), last.time)
        self._take(last, last.time)

    async def _find_operations(self, time: int) -> bytes | None:
        """The entry at a time, if it has writes to the collection."""
        arguments = {"filter": {**_at(time), **self._watched.operations_filter()}, "limit": 1, "singleBatch": True}
        async with RawCursor.open(self._mongod, OPLOG) as cursor:
            batch = await cursor.find({**arguments, **_FORWARD})
        return next(iter(batch.documents()), None)

    async def _find_entry(self, wanted: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """The first entry that is wanted."""
        find = {"find": OPLOG.collection, "filter": wanted, "limit": 1, "singleBatch": True, **options, **_FORWARD}
        reply = await self._mongod.command(OPLOG.db, find)
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found[0] if found else None


def _at(time: int) -> dict[str, Any]:
    exactly = unpack_timestamp(time)
    return {"ts": {"$gte": exactly, "$lte": exactly}}
