"""The donor's source of a database: clones of its collections, then changes to them, and the session history.

As in a chunk migration (`shardd.migration.source.clone_source`), the oplog is followed from before the first clone, and
the ids of changed documents are queued, here with the UUID of their collection. Collections may be added at any time.
"""

from collections.abc import Container, Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.operation_ids import new_opid
from shardwright.shardd.migration.database.collection_source import CollectionChanges, CollectionSource
from shardwright.shardd.migration.database.moved_collections import (
    MovedCollection,
    MovedDatabase,
    copy_uuid,
    list_moved,
)
from shardwright.shardd.migration.database.watched_database import UUID_BYTES, WatchedDatabase
from shardwright.shardd.migration.source.clone_source import QUEUED_BYTES_MAX, BatchNumbers
from shardwright.shardd.migration.source.oplog_follower import OplogFollower, TouchedIds
from shardwright.shardd.session_history.database_history import DatabaseHistoryReader
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.database")

_LOOKED_UP_MAX: Final = 8_000
_LOOKED_UP_BYTES_MAX: Final = 1 << 20
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limits for a batch of changes; the last collection in it may exceed the size by 16 MB."""


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
