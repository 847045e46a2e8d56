"""Reading the documents of a range: in the order of its index, by their ids, estimated, and as a digest.

The cursor belongs to a session that is kept alive: mongod closes idle cursors after ten minutes unless they belong to a
session, and sessions after thirty minutes without use. So a slow recipient does not lose the cursor. If this daemon
dies its cursor does not stay open for ever, as it would with ``noCursorTimeout``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.shard_key_index import ShardKeyIndex, migration_cursor
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
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
    """

    array: memoryview
    documents: int

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return len(self.array)


class DocumentReader:
    """Runs scans one after the other, and holds one batch until it is requested.

    Args:
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

        Raises CollectionUUIDMismatch, or another error if the index was dropped.
        """
        self._is_session_used = True
        for scan in self._scans[:1]:
            await self._find(scan)

    async def run(self) -> None:
        """Read ahead to the end, or until the cursor is killed or the collection dropped."""
        async with self._sender:
            for position, scan in enumerate(self._scans):
                cursor = await self._find(scan) if position else self._cursor
                assert cursor is not None, "opened"
                while not cursor.is_exhausted:
                    await self._take(await cursor.next_batch(batchSize=self._batch_documents))
            self.is_exhausted = True

    async def keep_alive(self) -> None:
        """Refresh the session at intervals until everything has been read."""
        while not self.is_exhausted:
            await trio.sleep(_KEEP_ALIVE_SECONDS)
            await self._mongod.command("admin", {"refreshSessions": [self._lsid]})

    async def next_batch(self) -> DocumentBatch | None:
        """Return the next batch; None when no more will come. `is_exhausted` says whether all have been read."""
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


_VALUE_AT: Final = 5
"""Offset of the value in an ``_id`` element: it follows the type, the name and a zero byte."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The current state of some documents.

    Attributes:
        deleted: ids, as elements, without a document in the range any more.
        unread: ids that were not looked up because the reply became too long.
    """

    deleted: list[bytes]
    reload: list[bytes]
    unread: set[bytes]


class ChangedDocuments:
    """Looks up documents of one collection by ``_id``, with majority read concern.

    Args:
        is_inside: whether a raw document is in the range.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        namespace: Namespace,
        collection_uuid: UUID,
        is_inside: Callable[[bytes], bool],
    ) -> None:
        self._mongod = mongod
        self._namespace = namespace
        self._collection_uuid = Binary.from_uuid(collection_uuid)
        self._is_inside = is_inside

    async def read(self, elements: Collection[bytes]) -> Changes:
        """Look documents up.

        The document found may have an ``_id`` that is equal to the one looked up but has other bytes (``1`` and
        ``1.0``, or by the collection's collation). It is reloaded, and the id looked up counts as deleted too, because
        its former document has to go. As deletions are applied first, the reloaded document survives.

        Raises:
            CommandError: CollectionUUIDMismatch, or ShardKeyNotFound for a document with an array as shard key.
        """
        found: dict[bytes, bytes] = {}
        async with migration_cursor(self._mongod, self._namespace, self._arguments(elements)) as cursor:
            async for batch in cursor:
                for document in batch.documents():
                    identity = rawbson.find(document, b"_id")
                    assert identity is not None, "every document has an _id"
                    found[document[identity[1] : identity[3]]] = document
                # A single reply of mongod, of 16 MB at most, is enough, provided that it settles at least one id.
                if any(element in found for element in elements):
                    break
        return self._changes_of(elements, found, is_complete=cursor.is_exhausted)

    def _arguments(self, elements: Collection[bytes]) -> Mapping[str, Any]:
        values = b"".join(
            [element[:1] + b"%d\0" % position + element[_VALUE_AT:] for position, element in enumerate(elements)]
        )
        wanted = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(values), b"$in")
        return {
            "filter": rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, wanted, b"_id")),
            "collectionUUID": self._collection_uuid,
            "batchSize": len(elements) + 1,  # one more than the result can have, so that the cursor ends with the batch
            "readConcern": {"level": "majority"},
        }

    def _changes_of(self, elements: Collection[bytes], found: Mapping[bytes, bytes], *, is_complete: bool) -> Changes:
        inside = {element: document for element, document in found.items() if self._is_inside(document)}
        if is_complete:
            unread: set[bytes] = set()
        else:
            unread = {element for element in elements if element not in found}
        deleted = [element for element in elements if element not in inside and element not in unread]
        return Changes(deleted, list(inside.values()), unread)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The size of a range, based on the average size of the collection's documents.

    Attributes:
        documents: number of documents in the range, without those whose key is only MaxKey.
    """

    documents: int
    bytes: int

    @property
    def average_bytes(self) -> int:
        """Average size of a document; 0 if there is none."""
        return self.bytes // self.documents if self.documents else 0


async def estimate_range(
    mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> Estimate:
    """Count the index keys of a range, without reading documents: 45 ms for 200,000.

    Raises IndexNotFound if no index supports the shard key.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    size = await mongod.command(
        namespace.db,
        {
            "dataSize": str(namespace),
            "keyPattern": index.key,
            "min": index.bound(wanted.min),
            "max": index.bound(wanted.max),
            "estimate": True,
        },
    )
    return Estimate(int(size["numObjects"]), int(size["size"]))


_SUM_BYTES: Final = 16
_SUM_MODULUS: Final = 1 << 8 * _SUM_BYTES
_BATCH_DOCUMENTS: Final = 2_000
"""Documents hashed at a time, which blocks all other tasks for some 5 ms."""


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """A digest that is equal on two shards if they hold the same documents, in any order.

    Attributes:
        sum: the sum, modulo 2**128, of the first 16 bytes of each document's SHA-256 as a big-endian number.
    """

    documents: int
    sum: int

    def to_document(self) -> dict[str, Any]:
        """Return the digest in the format of replies."""
        return {"documents": Int64(self.documents), "sum": Binary(self.sum.to_bytes(_SUM_BYTES, "big"))}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "RangeDigest":
        """Read the format of `to_document`."""
        return cls(int(document["documents"]), int.from_bytes(bytes(document["sum"]), "big"))


async def digest(
    mongod: LocalMongod, namespace: Namespace, collection_uuid: UUID, pattern: ShardKeyPattern, wanted: ChunkRange
) -> RangeDigest:
    """Compute a range's digest with majority read concern: some 2 s for 1,000,000 documents of 1 kB.

    Raises CollectionUUIDMismatch, IndexNotFound, or an error if the cursor was interrupted.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    documents = total = 0
    for scan in index.scans(pattern, wanted):
        arguments = {**scan, "collectionUUID": Binary.from_uuid(collection_uuid), "readConcern": {"level": "majority"}}
        async with migration_cursor(mongod, namespace, arguments, options={"batchSize": _BATCH_DOCUMENTS}) as cursor:
            async for batch in cursor:
                found = batch.documents()
                documents += len(found)
                total += sum([int.from_bytes(sha256(document).digest()[:_SUM_BYTES], "big") for document in found])
                await trio.lowlevel.checkpoint()
    return RangeDigest(documents, total % _SUM_MODULUS)
