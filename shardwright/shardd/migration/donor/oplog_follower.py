"""Following the local mongod's oplog for writes to one collection.

Only majority-committed entries are read. So nothing is sent that could be rolled back, and a majority read after an
entry was read sees its writes. The cursor requests resume tokens of the oplog (``$_requestResumeToken``), which show
how far mongod has scanned even when it had nothing to send.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import append_oplog_note
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.local_mongod.shard_key_index import migration_cursor
from shardwright.shardd.migration.donor.oplog_entries import MARKER_FIELD, EntryKind, OplogEntry, Watched
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_value

if TYPE_CHECKING:
    from shardwright.wire.transport.cursor import RawCursor


_ENTRY_BYTES: Final = 150
"""Memory used by one entry besides the id itself: the bytes object, the integer, and the slot in the dictionary."""


class TouchedIds:
    """An ordered set of ids. An id is a BSON ``_id`` element: its type, name and value.

    Ids that MongoDB considers equal but whose bytes differ (``1`` and ``1.0``) are different here.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._times: dict[bytes, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, element: bytes, time: int) -> None:
        """Add the id of a document that was changed at a time.

        Args:
            element: the ``_id`` element.
            time: the time, packed; not before any earlier call's.

        Raises:
            CommandError: ExceededMemoryLimit.
        """
        if element in self._times:
            return
        self._times[element] = time
        self.bytes += len(element) + _ENTRY_BYTES
        if self.bytes > self._bytes_max:
            raise CommandError(ErrorCode.ExceededMemoryLimit, "Aborting migration because of high memory usage")

    def take(self, count_max: int, bytes_max: int) -> dict[bytes, int]:
        """Remove and return the first ids with their times: at least one if there is any, within the two limits."""
        taken: dict[bytes, int] = {}
        taken_bytes = 0
        for element, time in islice(self._times.items(), count_max):
            if taken and taken_bytes + len(element) > bytes_max:
                break
            taken[element] = time
            taken_bytes += len(element)
        for element in taken:
            del self._times[element]
        self.bytes -= taken_bytes + len(taken) * _ENTRY_BYTES
        return taken

    def put_back(self, taken: Mapping[bytes, int]) -> None:
        """Return ids to the front of the queue, with their times."""
        if taken:
            self._times = {**taken, **{key: time for key, time in self._times.items() if key not in taken}}
            self.bytes = sum(map(len, self._times)) + len(self._times) * _ENTRY_BYTES

    def handed_out(self, followed: int) -> int:
        """Return the time of the last taken change, given that changes up to ``followed`` have been added."""
        for time in self._times.values():
            return time - 1
        return followed


OPLOG: Final = Namespace("local", "oplog.rs")

_AWAIT_MS: Final = 1_000
"""Time that mongod waits for an entry before it reports only its scan position."""

_ENTRIES_MAX: Final = 1_000
"""Number of entries processed at a time, which blocks all other tasks for some 10 ms."""

_FORWARD: Final = {"hint": {"$natural": 1}}


class OplogFollower:
    """Queues the ids of touched documents.

    Args:
        watched: decides which entries matter.
        observe: see `shardd.migration.donor.clone_source.CloneSource`.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        watched: Watched,
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
            position: entries after this time are followed; by default those from now on.

        Returns:
            The position.

        Raises:
            CommandError: CappedPositionLost, the oplog does not reach back that far; NotWritablePrimary.
        """
        # After this write, majority reads include everything written so far, in earlier terms as well.
        present = await self._write_marker()
        self.followed = pack_timestamp(position or present)
        start = unpack_timestamp(self.followed)
        find = {
            "filter": {"ts": {"$gt": start}, **self._watched.filter()},
            "tailable": True,
            "awaitData": True,
            "readConcern": {"level": "majority"},
            "$_requestResumeToken": True,
            **_FORWARD,
        }
        self._cursor = migration_cursor(self._mongod, OPLOG, find)
        await self._cursor.next_batch(batchSize=0)
        # Checked only once the cursor is open: mongod would fail the cursor if entries it has yet to read were removed.
        oldest = await self._find_entry({}, {"projection": {"ts": 1}})
        if oldest is None or oldest["ts"] > start:
            raise CommandError(
                ErrorCode.CappedPositionLost,
                f"the oplog does not reach back to {start}, from where it has to be followed",
            )
        return start

    async def run(self) -> None:
        """Follow until cancelled, or an error of `CloneSource.run`."""
        cursor = self._cursor
        assert cursor is not None, "opened"
        while not cursor.is_exhausted:
            await self._read(await cursor.next_batch(maxTimeMS=_AWAIT_MS, batchSize=_ENTRIES_MAX))
        raise CommandError(ErrorCode.CursorNotFound, "the cursor on the oplog ended")

    async def wait_followed(self, time: Timestamp, check: Callable[[], None]) -> None:
        """Return when everything up to a time has been read.

        Args:
            time: the time of an entry that has been written already.
            check: called before each wait; raises when nothing more will be read.

        Raises:
            CommandError: raised by ``check``; NotWritablePrimary.
        """
        wanted = pack_timestamp(time)
        if self.followed < wanted:
            await self._write_marker()  # so that mongod has something to send
        while self.followed < wanted:
            check()
            await self._progress.park()

    async def close(self) -> None:
        """End the cursor, even when cancelled, and wake all tasks in `wait_followed`."""
        self._progress.unpark_all()
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            await cursor.close()

    async def _write_marker(self) -> Timestamp:
        note = {"appendOplogNote": 1, "data": {MARKER_FIELD: self._session_id}, "writeConcern": MAJORITY}
        reply = await append_oplog_note(self._mongod.write, note)
        time: Timestamp = reply["operationTime"]
        return time

    async def _read(self, batch: RawBatch) -> None:
        """Process one batch.

        If a batch became too long, mongod has scanned further than it has sent entries. So the reported position counts
        only when the batch is empty.
        """
        for raw in batch.documents():
            entry = self._watched.read(raw)
            if entry.kind is EntryKind.COMMIT:
                await self._read_transaction(entry)
            elif entry.kind is not EntryKind.OTHER:
                self._take(entry, entry.time)
            self.followed = entry.time
        if batch.is_empty:
            self.followed = max(self.followed, _looked_up_to(batch))
        self._progress.unpark_all()

    def _take(self, entry: OplogEntry, committed: int) -> None:
        if entry.kind is not EntryKind.NOOP:
            for element in self._watched.touched_by(entry):
                self._touched.add(element, committed)
        self._observe(entry.raw)

    async def _read_transaction(self, last: OplogEntry) -> None:
        """Process a committed transaction along the chain of its entries, which may begin long before.

        First only the pointers are followed back to the beginning. Then the relevant entries are read from the first
        on, so that there is never more than one in memory.
        """
        times = []
        time = last.previous
        while time:
            times.append(time)
            entry = await self._find_entry(_at(time), {"projection": {"prevOpTime": 1}})
            if entry is None:
                raise CommandError(
                    ErrorCode.CappedPositionLost,
                    f"the oplog does not reach back to {unpack_timestamp(time)}, when a transaction wrote that has "
                    "only now committed",
                )
            time = pack_timestamp(entry["prevOpTime"]["ts"])
        for time in reversed(times):
            raw = await self._find_operations(time)
            if raw is not None:
                self._take(self._watched.read(raw), last.time)
        self._take(last, last.time)

    async def _find_operations(self, time: int) -> bytes | None:
        """Return the raw entry of a time if it has writes to the collection, else None."""
        arguments = {"filter": {**_at(time), **self._watched.operations_filter()}, "limit": 1, "singleBatch": True}
        found = await migration_cursor(self._mongod, OPLOG, {**arguments, **_FORWARD}).all_documents()
        return next(iter(found), None)

    async def _find_entry(self, wanted: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the first entry that matches, or None."""
        find = {"find": OPLOG.collection, "filter": wanted, "limit": 1, "singleBatch": True, **options, **_FORWARD}
        reply = await self._mongod.command(OPLOG.db, find)
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found[0] if found else None


def _looked_up_to(batch: RawBatch) -> int:
    """Return the packed time of mongod's scan position; 0 if it is not reported."""
    token = batch.cursor.get(b"postBatchResumeToken")
    return 0 if token is None else pack_timestamp(decode_value(batch.frame, token).get("ts", Timestamp(0, 0)))


def _at(time: int) -> dict[str, Any]:
    exactly = unpack_timestamp(time)
    return {"ts": {"$gte": exactly, "$lte": exactly}}
