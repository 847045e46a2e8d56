"""The session history of one migration as its recipient pulls it from the donor.

It has three sources: the history that the donor itself received in earlier migrations, the donor's
``config.transactions``, and the oplog since the beginning of the migration. Their order does not matter: every
statement is a document of its own, and the recipient goes by the highest transaction number of a session.

Of the oplog only each session's newest transaction number is kept, as mongod does: a session that has begun its next
write will not retry the previous one. If that takes too much memory, only the section of the oplog is remembered, and
read again later.

Batches are numbered like those of the documents: repeating the last number gives the same batch again.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import find_cursor
from shardwright.shardd.session_history.images import StatementsWithImages
from shardwright.shardd.session_history.oplog_history import HistoryEntry, HistoryReader
from shardwright.shardd.session_history.session_chains import ENTRIES_PER_READ, OPLOG, SessionChains
from shardwright.shardd.session_history.statement import ExecutedStatement
from shardwright.shardd.session_history.table import HISTORY
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from shardwright.wire.transport.cursor import RawCursor

logger = get_logger("shardd.session_history")

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
STATEMENTS_PER_BATCH: Final = 5_000
"""A batch ends when it reaches one of these limits; its last document may exceed the size by 16 MB. It is made and read
without a pause, so it must not keep donor or recipient from other work for long."""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory used for statements from the oplog."""

_READ_OPTIONS: Final = {"batchSize": ENTRIES_PER_READ}

_ENTRY_BYTES: Final = 1_000
"""Approximate memory used by an entry in addition to its image."""


@dataclass(slots=True)
class _LatestWrite:
    """What a session has executed under its newest transaction number."""

    txn_number: int
    entries: list[HistoryEntry] = field(default_factory=list)


class DonorHistory:
    """The executed retryable writes that a donor hands out. Must be created after the oplog follower was opened.

    Args:
        mongod: the donor's local mongod, which is primary.
        reader: selects and interprets the entries.
        kept_bytes_max: limit for the memory used for observed entries.

    Attributes:
        statements_sent: number of statements handed out.
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
        """Whether everything known so far has been handed out and acknowledged."""
        return self._is_empty and not self._batch

    async def next_batch(self, number: int | None = None) -> list[bytes]:
        """The next statements as raw documents; none if there are no more at the moment.

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
        """Close what is still being read, also when cancelled; no more batches can be had."""
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
        """Some statements of one source; possibly none although there are more."""
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
        """Read the next entries of the section of the oplog that there was no memory for."""
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
