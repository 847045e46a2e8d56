"""The donor's source of a database: clones of its collections, then changes to them, and the session history.

As in a chunk migration (`shardd.migration.donor.clone_source`), the oplog is followed from before the first clone, and
the ids of changed documents are queued, here with the UUID of their collection. Collections may be added at any time.

Each collection is cloned in natural order (`CollectionSource`). A cursor may end because the collection is gone. The
coordinator notices that too, and drops the copy. Or it may have been killed, by ``killAllSessions`` for example, and
then the copy would lack documents. mongod's errors do not distinguish these cases, so the collection is looked up.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.current_op import new_opid
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.migration.donor.clone_source import QUEUED_BYTES_MAX, BatchNumbers
from shardwright.shardd.migration.donor.oplog_entries import UUID_BYTES, WatchedDatabase
from shardwright.shardd.migration.donor.oplog_follower import OplogFollower, TouchedIds
from shardwright.shardd.migration.donor.range_documents import ChangedDocuments, DocumentBatch, DocumentReader
from shardwright.shardd.migration.moved_database import MovedCollection, MovedDatabase, copy_uuid, list_moved
from shardwright.shardd.migration.recipient.clone import run_together
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.shardd.session_history.oplog_history import DatabaseHistoryReader
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.database")


_NO_MORE: Final = DocumentBatch(memoryview(rawbson.EMPTY_DOCUMENT), 0)

_LOOKED_UP_MAX: Final = 8_000
_LOOKED_UP_BYTES_MAX: Final = 1 << 20
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limits for a batch of changes; the last collection in it may exceed the size by 16 MB."""


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


class DatabaseSource:
    """One attempt to serve a database.

    All methods raise CommandError or BackendError if mongod fails, or with the error that ended `run`.

    Args:
        mongod: the donor's local mongod, which is primary.
        sharded: the namespaces of its sharded collections, which do not move.

    Attributes:
        session_id: the session id of the recipient's requests.
        history: the retryable writes, once `start` has returned.
    """

    history: DonorHistory

    def __init__(self, mongod: LocalMongod, db: str, sharded: Container[str], move_id: UUID) -> None:
        self.db = db
        self.move_id = move_id
        self.opid = new_opid()
        self.began = datetime.now(UTC)
        self.session_id = f"{db}_{move_id}"
        self._mongod = mongod
        self._sharded = sharded
        self._touched = TouchedIds(QUEUED_BYTES_MAX)
        self._watched = WatchedDatabase(db, self.session_id)
        self._follower = OplogFollower(mongod, self._watched, self._touched, self.session_id, self._observe)
        self._listed: Mapping[UUID, MovedCollection] = {}
        self._collections: dict[UUID, CollectionSource] = {}
        self._mods_lock = trio.Lock()
        self._mods_numbers = BatchNumbers("modifications")
        self._unacknowledged: dict[bytes, int] = {}
        self._changes_listed = 0
        self._nursery: trio.Nursery | None = None
        self._failure: CommandError | BackendError | None = None

    @property
    def documents_cloned(self) -> int:
        """Number of cloned documents."""
        return sum(each.scan.documents for each in self._collections.values())

    @property
    def bytes_cloned(self) -> int:
        """Size of the cloned documents in bytes."""
        return sum(each.scan.bytes for each in self._collections.values())

    @property
    def queued_ids(self) -> int:
        """Number of changed documents that remain to be sent."""
        return len(self._touched)

    @property
    def has_changed(self) -> bool:
        """Whether a collection or view may have been created, dropped or altered since `listed` was last called."""
        return self._watched.changes != self._changes_listed

    async def start(self) -> None:
        """Open the cursor on the oplog; `run` must be called next."""
        await self._follower.open(None)
        reader = DatabaseHistoryReader(self.db, self._is_moved, self._copy_of)
        self.history = DonorHistory(self._mongod, reader)

    async def run(self, nursery: trio.Nursery) -> None:
        """Follow the oplog until the nursery is cancelled or an error occurs, which the other methods then raise."""
        self._nursery = nursery
        try:
            await self._follower.run()
        except (BackendError, CommandError) as failure:
            logger.info("The source of a database failed", db=self.db, error=str(failure))
            self._failure = failure
        finally:
            self._failure = self._failure or CommandError(ErrorCode.Interrupted, f"the move of {self.db} has ended")
            await self._follower.close()
            await self.history.close()

    async def listed(self) -> MovedDatabase:
        """List the collections and views that move now."""
        self.check()
        self._changes_listed = self._watched.changes
        moved = await list_moved(self._mongod, self.db, self._sharded)
        self._listed = moved.collections
        return moved

    def add(self, uuid: UUID) -> None:
        """Begin to follow a collection that `listed` has returned last, and discard an earlier clone of it."""
        self.check()
        assert self._nursery is not None, "running"
        # From before the clone's cursor is opened, so that no change in between is missed.
        self._watched.collections.add(uuid.bytes)
        self._collections[uuid] = CollectionSource(self._mongod, self._listed[uuid].namespace, uuid, self._nursery)

    def remove(self, uuid: UUID) -> None:
        """Stop following a collection whose copy is no longer needed."""
        self._watched.collections.discard(uuid.bytes)
        self._collections.pop(uuid, None)

    def copy_of(self, uuid: UUID) -> UUID:
        """Return the UUID of a collection's copy."""
        return copy_uuid(self.move_id, uuid)

    async def clone_batch(self, uuid: UUID, number: int | None) -> memoryview:
        """Return a batch of the clone of a collection; see `CollectionSource.clone_batch`.

        Raises NamespaceNotFound also if the collection is not being cloned.
        """
        self.check()
        collection = self._collections.get(uuid)
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"the collection {uuid} of {self.db} is not being moved")
        return await collection.clone_batch(number)

    async def next_mods(self, number: int | None) -> list[CollectionChanges]:
        """Return the next changes; none if nothing is queued at the moment.

        Args:
            number: the number of the batch, from 0, which acknowledges all previous ones.

        Raises:
            CommandError: also BadValue, ``number`` is neither the last one nor the next.
        """
        async with self._mods_lock:
            self.check()
            is_repeated = self._mods_numbers.is_repeated(number)
            if is_repeated:
                self._touched.put_back(self._unacknowledged)
            self._unacknowledged = {}
            changes = await self._read_mods()
            if not is_repeated:
                self._mods_numbers.advance()
            return changes

    async def wait_followed(self, time: Timestamp) -> None:
        """Return when all changes up to ``time``, which need not be majority-committed yet, have been queued."""
        await self._follower.wait_followed(time, self.check)

    def check(self) -> None:
        """Raise the error that ended `run`, if it has ended."""
        if self._failure is not None:
            raise self._failure

    def _observe(self, raw: bytes) -> None:
        self.history.observe(raw)

    def _is_moved(self, namespace: str) -> bool:
        return namespace.partition(".")[0] == self.db and namespace not in self._sharded

    def _copy_of(self, uuid: bytes) -> bytes:
        return copy_uuid(self.move_id, UUID(bytes=uuid)).bytes if len(uuid) == UUID_BYTES else uuid

    async def _read_mods(self) -> list[CollectionChanges]:
        taken = self._touched.take(_LOOKED_UP_MAX, _LOOKED_UP_BYTES_MAX)
        by_collection: dict[UUID, dict[bytes, bytes]] = {}
        for key in taken:
            by_collection.setdefault(UUID(bytes=key[:UUID_BYTES]), {})[key[UUID_BYTES:]] = key
        left = dict(taken)
        batch: list[CollectionChanges] = []
        size = 0
        try:
            for uuid, elements in by_collection.items():
                if size > _REPLY_BYTES_MAX:
                    break
                unread: Container[bytes] = ()
                collection = self._collections.get(uuid)
                if collection is not None:  # otherwise it has been removed
                    changes, unread = await collection.changes(elements)
                    batch.append(changes)
                    size += sum(map(len, changes.reload))
                for element, key in elements.items():
                    if element not in unread:
                        self._unacknowledged[key] = left.pop(key)
        finally:
            self._touched.put_back(left)
        return [each for each in batch if each.deleted or each.reload]
