"""The session history of one migration as its recipient pulls it from the donor, with the images of findAndModify.

It has three sources: the history that the donor received in earlier migrations, the donor's ``config.transactions``,
and the oplog since the migration began. Their order does not matter. Every statement is a separate document, and the
recipient uses the highest transaction number of a session.

Of the oplog only each session's newest transaction number is kept, as in mongod: a session that has begun its next
write will not retry the previous one. If that takes too much memory, only the section of the oplog is recorded, and
read again later.

Batches are numbered like batches of documents: repeating the last number returns the same batch.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.shard_key_index import all_documents, find_cursor
from shardwright.shardd.session_history.migrated_history import HISTORY
from shardwright.shardd.session_history.oplog_history import HistoryEntry, HistoryReader
from shardwright.shardd.session_history.session_chains import ENTRIES_PER_READ, OPLOG, SessionChains
from shardwright.shardd.session_history.statement import ExecutedStatement, SessionWrite, unpack_int64
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_value, find, index, raw_document

if TYPE_CHECKING:
    from shardwright.wire.transport.cursor import RawCursor


_IMAGES: Final = Namespace("config", "image_collection")
_MAJORITY: Final = {"level": "majority"}

_EntryKey = tuple[SessionWrite, int]


class StatementsWithImages:
    """Statements of some entries with their images, which are too large to be read all at once.

    Their order differs from the order of the entries. If an image is gone, retries of its statement will fail.
    """

    def __init__(self, mongod: LocalMongod, entries: Sequence[HistoryEntry]) -> None:
        self._mongod = mongod
        self._without_image: list[HistoryEntry] = []
        self._image_in_oplog: list[HistoryEntry] = []
        self._image_aside: dict[_EntryKey, HistoryEntry] = {}
        for entry in entries:
            if entry.image is None:
                self._without_image.append(entry)
            elif entry.image.time:
                self._image_in_oplog.append(entry)
            else:
                self._image_aside[entry.write, entry.time] = entry
        side_images = _find_side_images(self._image_aside)
        self._side_images = find_cursor(mongod, _IMAGES, side_images, options={"batchSize": ENTRIES_PER_READ})
        self.is_exhausted = not entries

    async def next_statements(self) -> list[ExecutedStatement]:
        """Return some statements, with images of about 16 MB in all; possibly none before the end.

        Raises:
            CommandError: mongod refuses, or a cursor was killed.
            BackendError: mongod does not answer.
        """
        statements = await self._next_statements()
        self.is_exhausted = not (self._without_image or self._image_in_oplog or self._image_aside)
        if self.is_exhausted:
            await self.close()
        return statements

    async def close(self) -> None:
        """Close the cursor, even when cancelled."""
        await self._side_images.close()

    async def _next_statements(self) -> list[ExecutedStatement]:
        if self._without_image:
            entries, self._without_image = self._without_image, []
            return [statement for entry in entries for statement in entry.statements]
        if self._image_in_oplog:
            entry = self._image_in_oplog.pop()
            assert entry.image is not None
            return _with_image(entry, await _noop_image(self._mongod, entry.image.time))
        batch = await self._side_images.next_documents()
        statements = [statement for raw in batch for statement in self._with_side_image(raw)]
        if not batch or self._side_images.is_exhausted:
            self._without_image, self._image_aside = [*self._image_aside.values()], {}
        return statements

    def _with_side_image(self, raw: bytes) -> list[ExecutedStatement]:
        """Return the statements of the requested entry that matches a document of ``config.image_collection``.

        The collection has the image of each session's last findAndModify.
        """
        fields = index(raw)
        lsid, image = fields[b"_id"], fields[b"image"]
        write = SessionWrite(raw[lsid[2] : lsid[3]], unpack_int64(raw, fields[b"txnNum"][2])[0])
        entry = self._image_aside.pop((write, pack_timestamp(decode_value(raw, fields[b"ts"]))), None)
        return [] if entry is None else _with_image(entry, raw[image[2] : image[3]])


def _find_side_images(wanted: dict[_EntryKey, HistoryEntry]) -> dict[str, object]:
    lsids = {write.lsid for write, _ in wanted}
    query = {"_id": {"$in": [raw_document(lsid) for lsid in lsids]}, "invalidated": {"$ne": True}}
    return {"filter": query, "readConcern": _MAJORITY}


def _with_image(entry: HistoryEntry, image: bytes | None) -> list[ExecutedStatement]:
    if image is None or entry.image is None:
        return [*entry.statements]
    return [each._replace(image=image, image_kind=entry.image.kind) for each in entry.statements]


async def _noop_image(mongod: LocalMongod, time: int) -> bytes | None:
    """Return the image in a no-op oplog entry, None if the entry is gone."""
    query = {"filter": {"ts": unpack_timestamp(time)}, "readConcern": _MAJORITY, "limit": 1, "singleBatch": True}
    for raw in await all_documents(mongod, OPLOG, query):
        image = find(raw, b"o")
        if image is not None:
            return raw[image[2] : image[3]]
    return None


logger = get_logger("shardd.session_history")

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
STATEMENTS_PER_BATCH: Final = 5_000
"""Limits of a batch: it ends at the first one reached, and its last document may exceed the size by 16 MB.

A batch is produced and read without a checkpoint, so it must not block donor or recipient for long.
"""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory used for statements from the oplog."""

_READ_OPTIONS: Final = {"batchSize": ENTRIES_PER_READ}

_ENTRY_BYTES: Final = 1_000
"""Approximate memory used by an entry in addition to its image."""


@dataclass(slots=True)
class _LatestWrite:
    """The executed entries of a session's newest transaction number."""

    txn_number: int
    entries: list[HistoryEntry] = field(default_factory=list)


class DonorHistory:
    """The executed retryable writes that a donor hands over. Must be created after the oplog follower was opened.

    Args:
        mongod: the donor's local mongod, which is primary.
        kept_bytes_max: limit for the memory used for observed entries.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        reader: HistoryReader,
        *,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.statements_sent = 0
        self._mongod = mongod
        self._reader = reader
        inherited = {"filter": reader.inherited_filter(), "readConcern": {"level": "majority"}}
        self._inherited = find_cursor(mongod, HISTORY, inherited, options=_READ_OPTIONS)
        self._chains = SessionChains(mongod, self._reader)
        self._kept_bytes_max = kept_bytes_max
        self._latest: dict[bytes, _LatestWrite] = {}
        self._kept_bytes = 0
        self._skipped: tuple[int, int] | None = None
        self._rescan: RawCursor | None = None
        self._statements = StatementsWithImages(mongod, ())
        self._number = -1
        self._reading = trio.Lock()
        self._is_cut_off = False
        self._batch: list[bytes] = []
        self._documents: deque[bytes] = deque()

    def observe(self, raw: bytes) -> None:
        """Record an oplog entry of the collection, or of a transaction that wrote to it."""
        entry = self._reader.read(raw)
        if entry is None or not entry.statements:
            return
        if self._skipped is not None or self._kept_bytes >= self._kept_bytes_max:
            self._skipped = (entry.time if self._skipped is None else self._skipped[0], entry.time)
        else:
            self._keep(entry)

    @property
    def is_drained(self) -> bool:
        """Whether everything recorded so far has been handed over and acknowledged."""
        return self._is_empty and not self._batch

    async def next_batch(self, number: int | None = None) -> list[bytes]:
        """Return the next statements as raw documents; none if there are no more at the moment.

        Args:
            number: the number of the batch, from 0, which acknowledges all previous ones; None for the next.

        Raises:
            CommandError: BadValue, ``number`` is neither the last one nor the next; CursorNotFound and the like, and
                OperationFailed after such an error, because the history now has a gap.
            BackendError: mongod does not answer.
        """
        async with self._reading:
            if number is not None and number == self._number:
                return self._batch
            if number is not None and number != self._number + 1:
                raise CommandError(
                    ErrorCode.BadValue,
                    f"batch {number} of the session history was requested after batch {self._number}",
                )
            self._batch = await self._read_batch()
            self._number += 1
            self.statements_sent += len(self._batch)
            return self._batch

    async def close(self) -> None:
        """Close all cursors, also when cancelled; `next_batch` fails from then on."""
        self._is_cut_off = True
        await self._statements.close()
        await self._inherited.close()
        await self._chains.close()
        if self._rescan is not None:
            await self._rescan.close()

    async def _read_batch(self) -> list[bytes]:
        if self._is_cut_off:
            raise CommandError(ErrorCode.OperationFailed, "reading the session history was interrupted")
        batch: list[bytes] = []
        size = 0
        self._is_cut_off = True
        while size < BATCH_BYTES_MAX and len(batch) < STATEMENTS_PER_BATCH and not self._is_empty:
            if self._documents:
                batch.append(self._documents.popleft())
                size += len(batch[-1])
            else:
                for statement in await self._next_statements():
                    self._documents += statement.to_documents()
        self._is_cut_off = False
        return batch

    @property
    def _is_empty(self) -> bool:
        return (
            not self._documents
            and self._statements.is_exhausted
            and self._inherited.is_exhausted
            and self._chains.is_exhausted
            and not self._latest
            and self._skipped is None
            and self._rescan is None
        )

    async def _next_statements(self) -> list[ExecutedStatement]:
        """Return some statements of one source; possibly none before the end."""
        if not self._statements.is_exhausted:
            return await self._statements.next_statements()
        if not self._inherited.is_exhausted:
            inherited = map(ExecutedStatement.from_bson, await self._inherited.next_documents())
            return [self._reader.inherited(each) for each in inherited if self._reader.concerns(each)]
        self._statements = StatementsWithImages(self._mongod, await self._next_entries())
        return []

    async def _next_entries(self) -> list[HistoryEntry]:
        if not self._chains.is_exhausted:
            return await self._chains.next_entries()
        if not self._latest:
            await self._read_skipped()
        return self._take_kept()

    def _keep(self, entry: HistoryEntry) -> None:
        lsid, number = entry.write.lsid, entry.write.txn_number
        latest = self._latest.get(lsid)
        if latest is not None and latest.txn_number > number:
            return
        if latest is None or latest.txn_number < number:
            if latest is not None:
                self._kept_bytes -= sum(map(_bytes_of, latest.entries))
            latest = self._latest[lsid] = _LatestWrite(number)
        elif latest.entries:
            first = latest.entries[0]
            latest.entries[0] = first.without_document()
            self._kept_bytes -= _bytes_of(first) - _bytes_of(latest.entries[0])
        latest.entries.append(entry)
        self._kept_bytes += _bytes_of(entry)

    def _take_kept(self) -> list[HistoryEntry]:
        """Remove and return some of the kept entries."""
        taken: list[HistoryEntry] = []
        size = 0
        while self._latest and len(taken) < ENTRIES_PER_READ and size < BATCH_BYTES_MAX:
            entries = self._latest.pop(next(iter(self._latest))).entries
            taken += entries
            size += sum(map(_bytes_of, entries))
        self._kept_bytes -= size
        return taken

    async def _read_skipped(self) -> None:
        """Read the next entries of the section of the oplog that exceeded the memory limit."""
        if self._rescan is None:
            if self._skipped is None:
                return
            low, high = map(unpack_timestamp, self._skipped)
            self._skipped = None
            logger.info("Rereading session history from the oplog", namespace=self._reader.namespace, since=str(low))
            find = {
                "filter": {
                    "ts": {"$gte": low, "$lte": high},
                    "txnNumber": {"$exists": True},
                    **self._reader.entries_filter(),
                },
                "readConcern": {"level": "majority"},
            }
            self._rescan = find_cursor(self._mongod, OPLOG, find, options=_READ_OPTIONS)
        batch = await self._rescan.next_documents()
        if not batch:
            self._rescan = None
        for raw in batch:
            entry = self._reader.read(raw)
            if entry is not None and entry.statements:
                self._keep(entry.uncertain() if entry.is_prepared else entry)


def _bytes_of(entry: HistoryEntry) -> int:
    image = entry.statements[0].image
    return _ENTRY_BYTES + (0 if image is None else len(image))
