"""The donor's source of one collection: its clone in natural order, then changes to it.

A cursor may end because the collection is gone. The coordinator notices that too, and drops the copy. Or it may have
been killed, by ``killAllSessions`` for example, and then the copy would lack documents. mongod's errors do not
distinguish these cases, so the collection is looked up.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.migration.recipient.clone import run_together
from shardwright.shardd.migration.source.clone_source import BatchNumbers
from shardwright.shardd.migration.source.range_documents import ChangedDocuments, DocumentBatch, DocumentReader
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.database")

_NO_MORE: Final = DocumentBatch(memoryview(rawbson.EMPTY_DOCUMENT), 0)


class CollectionScan:
    """Reads one collection once, one batch ahead.

    Attributes:
        documents: number of cloned documents.
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
        """Open the cursor, or raise an error if the collection is gone."""
        await self._reader.open()

    async def run(self) -> None:
        """Read ahead to the end or the first failure, which `next_batch` then raises."""
        try:
            await run_together(self._reader.run, meanwhile=self._reader.keep_alive)
        except (CommandError, BackendError) as failure:
            self._failure = failure
            logger.info("The clone of a collection failed", namespace=str(self._namespace), error=str(failure))
        finally:
            self._has_ended.set()
            await self._reader.close()

    async def next_batch(self, number: int | None) -> memoryview:
        """Return a batch of documents as a raw BSON array; empty when there are no more.

        Args:
            number: the number of the batch, from 0: the last one again, or the next.

        Raises:
            CommandError: BadValue, the number is neither; or the error with which the clone failed.
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


_MAY_BE_GONE: Final = frozenset(
    {ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch, ErrorCode.QueryPlanKilled, ErrorCode.CursorNotFound}
)


@dataclass(frozen=True, slots=True)
class CollectionChanges:
    """Changes to one collection; deletions are to be applied first.

    Attributes:
        uuid: its UUID on the donor.
        deleted: raw ``{_id}`` of documents that no longer exist.
        reload: current versions of changed documents, raw, in the order in which they were first changed.
    """

    uuid: UUID
    deleted: list[bytes]
    reload: list[bytes]


class CollectionSource:
    """The clone and changes of one collection."""

    def __init__(self, mongod: LocalMongod, namespace: Namespace, uuid: UUID, nursery: trio.Nursery) -> None:
        self.scan = CollectionScan(mongod, namespace, uuid)
        self._mongod = mongod
        self._namespace = namespace
        self._uuid = uuid
        self._nursery = nursery
        self._lookup = ChangedDocuments(mongod, namespace, uuid, lambda document: True)
        self._is_open = False

    async def clone_batch(self, number: int | None) -> memoryview:
        """Return a batch of the clone (see `CollectionScan.next_batch`), which the first request begins.

        The recipient clones one collection after the other, so there is one cursor, and one batch in memory, at a time.

        Raises:
            CommandError: NamespaceNotFound, the collection is gone; or the error with which the clone failed.
        """
        try:
            if not self._is_open:
                await self.scan.open()
                self._is_open = True
                self._nursery.start_soon(self.scan.run)
            return await self.scan.next_batch(number)
        except CommandError as error:
            if await self._is_gone(error):
                raise CommandError(ErrorCode.NamespaceNotFound, error.message) from error
            raise

    async def changes(self, elements: dict[bytes, bytes]) -> tuple[CollectionChanges, Container[bytes]]:
        """Return the current state of documents, and the ids to look up again; both empty if the collection is gone.

        Args:
            elements: their ``_id`` elements, as keys in the order of the changes.
        """
        try:
            found = await self._lookup.read(elements)
        except CommandError as error:
            if await self._is_gone(error):
                return CollectionChanges(self._uuid, [], []), ()
            raise
        deleted = [rawbson.from_elements(element) for element in found.deleted]
        order = {element: position for position, element in enumerate(elements)}
        reload = sorted(found.reload, key=lambda document: order.get(_id_element(document), 0))
        return CollectionChanges(self._uuid, deleted, reload), found.unread

    async def _is_gone(self, error: CommandError) -> bool:
        """Whether an error was caused by the collection having been dropped, renamed or replaced."""
        if error.code not in _MAY_BE_GONE:
            return False
        present = await describe(self._mongod, self._namespace)
        return present is None or present.uuid != self._uuid


def _id_element(document: bytes) -> bytes:
    identity = rawbson.find(document, b"_id")
    assert identity is not None, "every document has an _id"
    return document[identity[1] : identity[3]]
