"""The data of one migration that its recipient pulls from the donor: first a clone, then modifications.

The clone is a scan of the index that supports the shard key. The oplog is followed from before that scan began, and the
ids of touched documents are queued. A batch of modifications has the current versions of some of them, and the ids of
those that are gone. So the order of changes does not matter, except that a batch's deletions are applied first.

Batches are numbered, so that a lost reply can be requested again. Repeating the last number gives the same clone batch,
or modifications of at least the same ids; the next number acknowledges the last batch.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.shard_key_index import ShardKeyIndex
from shardwright.shardd.migration.donor.oplog_entries import WatchedCollection
from shardwright.shardd.migration.donor.oplog_follower import OplogFollower, TouchedIds
from shardwright.shardd.migration.donor.range_documents import (
    ChangedDocuments,
    DocumentBatch,
    DocumentReader,
    Estimate,
    estimate_range,
)
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.source")


class BatchNumbers:
    """Counts batches from 0.

    Args:
        kind: the kind of the batches, for the error message.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._last = -1

    def is_repeated(self, number: int | None) -> bool:
        """Whether the last batch is requested again; None requests the next one, as MongoDB's recipients do.

        Raises BadValue if the number is neither the last batch's nor the next.
        """
        if number is not None and (number < 0 or number not in (self._last, self._last + 1)):
            raise CommandError(
                ErrorCode.BadValue, f"{self._kind} batch {number} was requested, but the last one was {self._last}"
            )
        return number == self._last

    def advance(self) -> None:
        """Record that the next batch has been made."""
        self._last += 1


QUEUED_BYTES_MAX: Final = 500 * 1024 * 1024
"""MongoDB's limit for the memory that a donor uses for one migration."""

_LOOKED_UP_MAX: Final = 8_000
"""Number of ids looked up for one batch of modifications; with documents of 2 kB they fill one reply of mongod."""

_LOOKED_UP_BYTES_MAX: Final = 1 << 20

_NO_MORE: Final = DocumentBatch(memoryview(rawbson.EMPTY_DOCUMENT), 0)


@dataclass(frozen=True, slots=True)
class TransferredMods:
    """One batch of modifications; deletions are to be applied first.

    Attributes:
        deleted: raw ``{_id}`` of documents that are no longer in the range, or no longer exist.
        reload: current versions of changed documents in the range, raw.
        size: bytes of both; 0 means that nothing is queued at the moment.
        position: every change up to this time has been sent, in this batch or before. A source that starts from here
            misses nothing.
    """

    deleted: list[bytes]
    reload: list[bytes]
    size: int
    position: Timestamp


class CloneSource:
    """The data of one migration.

    Args:
        mongod: the donor's local mongod, which is primary.
        collection_uuid: its UUID; another UUID under that name means another collection.
        observe: called with the raw oplog entries of the session history, in the order in which they took effect. These
            are the collection's writes and no-ops, possibly outside the range. For a committed transaction they are its
            ``applyOps`` entries with writes to the collection and the entry that commits it.
        queued_bytes_max: limit for the memory used by queued ids.

    Attributes:
        documents_cloned: number of documents in the clone batches sent.
        is_clone_exhausted: whether the empty last batch of the clone has been sent.
        position: the time after which the oplog is followed, once `start` has returned.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        namespace: Namespace,
        collection_uuid: UUID,
        pattern: ShardKeyPattern,
        range: ChunkRange,
        session_id: str,
        *,
        observe: Callable[[bytes], None] = lambda entry: None,
        queued_bytes_max: int = QUEUED_BYTES_MAX,
    ) -> None:
        self.session_id = session_id
        self.documents_cloned = 0
        self.bytes_cloned = 0
        self.is_clone_exhausted = False
        self.position = Timestamp(0, 0)
        self._mongod = mongod
        self._namespace = namespace
        self.collection_uuid = collection_uuid
        self._pattern = pattern
        self._range = range
        self._touched = TouchedIds(queued_bytes_max)
        watched = WatchedCollection(namespace, collection_uuid, pattern, range, session_id)
        self._follower = OplogFollower(mongod, watched, self._touched, session_id, observe)
        self._changes = ChangedDocuments(mongod, namespace, collection_uuid, self._is_inside)
        self._reader: DocumentReader | None = None
        self._clone_lock = trio.Lock()
        self._clone_numbers = BatchNumbers("clone")
        self._last_clone_batch = _NO_MORE
        self._mods_lock = trio.Lock()
        self._mods_numbers = BatchNumbers("modifications")
        self._unacknowledged: dict[bytes, int] = {}
        self._scope = trio.CancelScope()
        self._failure: CommandError | BackendError | None = None

    @property
    def queued_ids(self) -> int:
        """Number of ids that remain to be sent."""
        return len(self._touched)

    @property
    def queued_bytes(self) -> int:
        """Approximate memory used by queued ids."""
        return self._touched.bytes

    async def start(self, *, position: Timestamp | None = None, from_key: bytes | None = None) -> Timestamp:
        """Open the cursor on the oplog, then the one on the documents. `run` must be called next; it also closes them.

        Args:
            position: the oplog is followed from after this time; by default from now.
            from_key: a shard key document from which the clone starts; by default the beginning of the range.

        Returns:
            The time after which the oplog is followed.

        Raises:
            CommandError: CappedPositionLost, the oplog does not reach back to ``position``; IndexNotFound, no index
                supports the shard key; CollectionUUIDMismatch, the collection does not exist or is another one;
                NotWritablePrimary.
        """
        index = await ShardKeyIndex.find(self._mongod, self._namespace, self._pattern)
        scans = index.scans(self._pattern, self._range, from_key)
        self._reader = DocumentReader(self._mongod, self._namespace, self.collection_uuid, scans)
        try:
            self.position = await self._follower.open(position)
            await self._reader.open()
        except BaseException:
            await self._release()
            raise
        return self.position

    async def run(self) -> None:
        """Follow the oplog and read ahead until `close`; the cursors are closed when this has returned or raised.

        Raises ExceededMemoryLimit, CappedPositionLost, NamespaceNotFound if the collection was dropped or renamed,
        Interrupted if its options or indexes changed, or an error of mongod. After any of them the migration cannot
        continue.
        """
        assert self._reader is not None, "started"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for task in (self._follower.run, self._reader.run, self._reader.keep_alive):
                        nursery.start_soon(self._until_failure, task)
        finally:
            failure = self._failure
            self._failure = failure or CommandError(ErrorCode.Interrupted, f"the migration {self.session_id} has ended")
            await self._release()
        if failure is not None:
            raise failure

    async def next_clone_batch(self, number: int | None = None) -> memoryview:
        """Return a clone batch, of some 8 MB, as a raw BSON array of documents; empty when there are no more.

        Args:
            number: the number of the batch, from 0; None for the next.

        Raises:
            CommandError: BadValue, ``number`` is neither the last one nor the next; or the error that ended `run`.
        """
        async with self._clone_lock:
            self._check()
            if not self._clone_numbers.is_repeated(number):
                self._last_clone_batch = await self._read_clone_batch()
                self._clone_numbers.advance()
            return self._last_clone_batch.array

    async def next_mods(self, number: int | None = None) -> TransferredMods:
        """Return a batch of modifications, of about 16 MB at most.

        Args:
            number: the number of the batch, from 0, which acknowledges all previous ones; None for the next.

        Raises:
            CommandError: BadValue, ``number`` is neither the last one nor the next; or the error that ended `run`.
        """
        async with self._mods_lock:
            self._check()
            if self._mods_numbers.is_repeated(number):
                self._touched.put_back(self._unacknowledged)
                self._unacknowledged = {}
                return await self._read_mods()
            mods = await self._read_mods()
            self._mods_numbers.advance()
            return mods

    async def wait_followed(self, time: Timestamp) -> None:
        """Return when all changes up to ``time``, which need not be majority-committed yet, have been queued.

        Raises the error that ended `run`, or NotWritablePrimary.
        """
        await self._follower.wait_followed(time, self._check)

    async def estimate(self) -> Estimate:
        """Estimate the number and size of the range's documents, from a count of index keys in mongod.

        Raises IndexNotFound if no index supports the shard key.
        """
        return await estimate_range(self._mongod, self._namespace, self._pattern, self._range)

    def close(self) -> None:
        """End `run`; calls that wait for a batch raise Interrupted. May be called more than once."""
        self._scope.cancel()

    async def _until_failure(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run one of the tasks; when one fails, all end, and the first failure counts."""
        try:
            await task()
        except (BackendError, CommandError) as error:
            logger.info(
                "The source of a migration failed",
                namespace=str(self._namespace),
                session=self.session_id,
                error=str(error),
            )
            self._failure = self._failure or error
            self._scope.cancel()

    def _is_inside(self, document: bytes) -> bool:
        return self._range.contains_key(self._pattern.key_bytes_of_document(document))

    async def _release(self) -> None:
        await self._follower.close()
        if self._reader is not None:
            await self._reader.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _read_clone_batch(self) -> DocumentBatch:
        assert self._reader is not None, "started"
        batch = await self._reader.next_batch()
        if batch is None:
            if not self._reader.is_exhausted:
                self._check()
            self.is_clone_exhausted = True
            return _NO_MORE
        self.documents_cloned += batch.documents
        self.bytes_cloned += batch.bytes
        return batch

    async def _read_mods(self) -> TransferredMods:
        followed = self._follower.followed
        taken = self._touched.take(_LOOKED_UP_MAX, _LOOKED_UP_BYTES_MAX)
        if not taken:
            self._unacknowledged = {}
            return TransferredMods([], [], 0, unpack_timestamp(followed))
        try:
            changes = await self._changes.read(taken)
        except BaseException:
            self._touched.put_back(taken)
            raise
        self._touched.put_back({element: time for element, time in taken.items() if element in changes.unread})
        self._unacknowledged = {element: time for element, time in taken.items() if element not in changes.unread}
        deleted = [rawbson.from_elements(element) for element in changes.deleted]
        size = sum(map(len, deleted)) + sum(map(len, changes.reload))
        position = unpack_timestamp(self._touched.handed_out(followed))
        return TransferredMods(deleted, changes.reload, size, position)
