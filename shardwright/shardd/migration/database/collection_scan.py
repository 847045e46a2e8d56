"""The clone of one unsharded collection, in its natural order, as the recipient pulls it batch by batch."""

from typing import Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.migration.recipient.together import run_together
from shardwright.shardd.migration.source.batch_numbers import BatchNumbers
from shardwright.shardd.migration.source.document_reader import DocumentBatch, DocumentReader
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.database")

_NO_MORE: Final = DocumentBatch(memoryview(rawbson.EMPTY_DOCUMENT), 0)


class CollectionScan:
    """Reads one collection once, one batch ahead.

    Args:
        mongod: the local mongod.
        namespace: the collection.
        collection_uuid: its UUID.

    Attributes:
        documents: number of documents handed out.
        bytes: their size in bytes.
    """

    def __init__(self, mongod: LocalMongod, namespace: Namespace, collection_uuid: UUID) -> None:
        self.documents = 0
        self.bytes = 0
        self._namespace = namespace
        self._reader = DocumentReader(mongod, namespace, collection_uuid, [{"hint": {"$natural": 1}}])
        self._numbers = BatchNumbers("clone")
        self._last = _NO_MORE
        self._lock = trio.Lock()
        self._failure: CommandError | BackendError | None = None
        self._has_ended = trio.Event()

    async def open(self) -> None:
        """Open the cursor.

        Raises:
            CommandError: the collection is gone; or mongod is no longer primary.
            BackendError: mongod does not answer.
        """
        await self._reader.open()

    async def run(self) -> None:
        """Read ahead to the end, or until something fails, which `next_batch` then reports."""
        try:
            await run_together(self._reader.run, meanwhile=self._reader.keep_alive)
        except (CommandError, BackendError) as failure:
            self._failure = failure
            logger.info("The clone of a collection failed", namespace=str(self._namespace), error=str(failure))
        finally:
            self._has_ended.set()
            await self._reader.close()

    async def next_batch(self, number: int | None) -> memoryview:
        """A batch of documents as a raw BSON array; empty when there are no more.

        Args:
            number: the number of the batch, from 0: the last one again, or the next.

        Raises:
            CommandError: BadValue, it is neither; or why the clone failed.
            BackendError: mongod does not answer.
        """
        async with self._lock:
            if not self._numbers.is_repeated(number):
                self._last = await self._read()
                self._numbers.advance()
            return self._last.array

    async def _read(self) -> DocumentBatch:
        batch = await self._reader.next_batch()
        if batch is None:
            await self._has_ended.wait()  # the reader ends a moment before its failure is known
            if self._failure is not None:
                raise self._failure
            if not self._reader.is_exhausted:
                raise CommandError(ErrorCode.Interrupted, f"the clone of {self._namespace} has ended")
            return _NO_MORE
        self.documents += batch.documents
        self.bytes += batch.bytes
        return batch
