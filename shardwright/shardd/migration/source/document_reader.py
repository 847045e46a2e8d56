"""Reading the documents of a range in the order of the index that supports the shard key, one batch ahead.

The cursor belongs to a session that is kept alive: mongod closes idle cursors after ten minutes unless they belong to a
session, and sessions after thirty minutes without use. So a recipient may take its time, and if this daemon dies its
cursor does not stay open for ever, as it would with ``noCursorTimeout``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import trio
from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import migration_cursor
from shardwright.sharding.namespace import Namespace
from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.cursor import RawCursor

logger = get_logger("shardd.migration.documents")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Target size of a batch: large enough that its fixed cost is negligible, small enough to hold several in memory."""

_FIRST_BATCH_DOCUMENTS: Final = 1_000
"""Size of the first batch, while the size of the documents is unknown."""

_KEEP_ALIVE_SECONDS: Final = 300.0
_CLEANUP_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """A batch of documents.

    Attributes:
        array: a raw BSON array of documents.
        documents: number of documents in it.
    """

    array: memoryview
    documents: int

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return len(self.array)


class DocumentReader:
    """Runs scans one after the other, and holds one batch until it is asked for.

    Args:
        mongod: the local mongod.
        namespace: the collection.
        collection_uuid: its UUID.
        scans: arguments of ``find``, one for each scan.
    """

    def __init__(
        self, mongod: LocalMongod, namespace: Namespace, collection_uuid: UUID, scans: Sequence[Mapping[str, Any]]
    ) -> None:
        self._mongod = mongod
        self._namespace = namespace
        self._collection_uuid = Binary.from_uuid(collection_uuid)
        self._scans = list(scans)
        self._lsid = {"id": Binary.from_uuid(uuid4())}
        self._cursor: RawCursor | None = None
        self._is_session_used = False
        self._batch_documents = _FIRST_BATCH_DOCUMENTS
        self._sender, self._receiver = trio.open_memory_channel[DocumentBatch](0)
        self.is_exhausted = False

    async def open(self) -> None:
        """Open the cursor of the first scan, if there is one.

        Raises:
            CommandError: CollectionUUIDMismatch, or the index was dropped.
            BackendError: mongod does not answer.
        """
        self._is_session_used = True
        for scan in self._scans[:1]:
            await self._find(scan)

    async def run(self) -> None:
        """Read ahead to the end.

        Raises:
            CommandError: the cursor was killed, the collection was dropped, or mongod is no longer primary.
            BackendError: mongod does not answer.
        """
        async with self._sender:
            for position, scan in enumerate(self._scans):
                cursor = await self._find(scan) if position else self._cursor
                assert cursor is not None, "opened"
                while not cursor.is_exhausted:
                    await self._take(await cursor.next_batch(batchSize=self._batch_documents))
            self.is_exhausted = True

    async def keep_alive(self) -> None:
        """Refresh the session at intervals until everything has been read.

        Raises:
            BackendError: mongod does not answer.
        """
        while not self.is_exhausted:
            await trio.sleep(_KEEP_ALIVE_SECONDS)
            await self._mongod.command("admin", {"refreshSessions": [self._lsid]})

    async def next_batch(self) -> DocumentBatch | None:
        """The next batch; None when no more will come, and `is_exhausted` says whether all have been read."""
        try:
            return await self._receiver.receive()
        except trio.EndOfChannel:
            return None

    async def close(self) -> None:
        """End the cursor and the session, even when cancelled. `next_batch` then returns None."""
        self._sender.close()
        if self._cursor is not None:
            await self._cursor.close()
        if not self._is_session_used:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLEANUP_SECONDS_MAX):
            try:
                await self._mongod.command("admin", {"endSessions": [self._lsid]})
            except (BackendError, CommandError) as error:
                # mongod ends an unused session by itself.
                logger.info("Could not end a session", namespace=str(self._namespace), error=str(error))

    async def _find(self, scan: Mapping[str, Any]) -> RawCursor:
        """Open the cursor of a scan, without documents for now."""
        find = {**scan, "collectionUUID": self._collection_uuid, "readConcern": {"level": "majority"}}
        self._cursor = migration_cursor(self._mongod, self._namespace, find, options={"lsid": self._lsid})
        await self._cursor.next_batch(batchSize=0)
        return self._cursor

    async def _take(self, batch: RawBatch) -> None:
        if batch.is_empty:
            return
        documents = batch.count(self._batch_documents)
        array = batch.array
        self._batch_documents = max(1, BATCH_BYTES * documents // len(array))
        await self._sender.send(DocumentBatch(array, documents))
