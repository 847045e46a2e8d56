"""The chunks of one sharded collection, read and changed inside a transaction."""

from collections.abc import Iterable, Mapping
from typing import Any

import bson
from bson.binary import Binary

from configd.transactions import Transaction
from sharding.catalog.collection_entry import CollectionEntry
from sharding.chunk_changes import ChunkChanges
from sharding.chunks import Chunk, ChunkRange
from sharding.versions import ChunkVersion
from wire import rawbson
from wire.error_codes import ErrorCode
from wire.errors import CommandError

_NEWEST_FIRST = {"lastmod": -1}
_IN_ORDER = {"min": 1}


async def find_collection(transaction: Transaction, namespace: str) -> CollectionEntry | None:
    """The entry of a sharded collection, None when it is not sharded."""
    document = await transaction.find_one("collections", {"_id": namespace})
    return None if document is None else CollectionEntry.from_document(document)


class CollectionChunks:
    """The chunks of a collection as one transaction sees them."""

    def __init__(self, transaction: Transaction, collection: CollectionEntry) -> None:
        self._transaction = transaction
        self.collection = collection
        self._uuid = Binary.from_uuid(collection.uuid)

    async def newest(self) -> Chunk:
        """The chunk of the highest version, which is the collection version.

        Raises:
            CommandError: IncompatibleShardingMetadata, the collection has no chunks.
        """
        chunks = await self._find({}, sort=_NEWEST_FIRST, limit=1)
        if not chunks:
            raise CommandError(
                ErrorCode.IncompatibleShardingMetadata,
                f"Could not find any chunks for collection {self.collection.namespace}",
            )
        return chunks[0]

    async def version(self) -> ChunkVersion:
        """The collection version; errors as `newest`."""
        return (await self.newest()).version

    async def shard_version(self, shard: str) -> ChunkVersion:
        """The highest version of the chunks on a shard, 0|0 when it owns none."""
        chunks = await self._find({"shard": shard}, sort=_NEWEST_FIRST, limit=1)
        return chunks[0].version if chunks else ChunkVersion(0, 0, self.collection.epoch, self.collection.timestamp)

    async def exactly(self, wanted: ChunkRange) -> Chunk | None:
        """The chunk of just these bounds."""
        chunks = await self._find({"min": _document(wanted.min), "max": _document(wanted.max)}, limit=1)
        return chunks[0] if chunks else None

    async def at(self, key: bytes) -> Chunk | None:
        """The chunk in which a shard key lies, None for the global maximum."""
        chunks = await self._find({"min": {"$lte": _document(key)}}, sort={"min": -1}, limit=1)
        if not chunks or not chunks[0].range(self.collection.key).contains_key(self.collection.key.key_bytes(key)):
            return None
        return chunks[0]

    async def before(self, key: bytes) -> Chunk | None:
        """The chunk that ends at or behind a shard key and begins before it, None for the global minimum."""
        chunks = await self._find({"min": {"$lt": _document(key)}}, sort={"min": -1}, limit=1)
        return chunks[0] if chunks else None

    async def overlapping(self, wanted: ChunkRange) -> list[Chunk]:
        """The chunks that hold some part of a range, in order."""
        first = await self.at(wanted.min)
        since = wanted.min if first is None else first.min
        return await self._find({"min": {"$gte": _document(since), "$lt": _document(wanted.max)}}, sort=_IN_ORDER)

    async def control_chunk(self, moved: Chunk) -> Chunk | None:
        """Another chunk of the shard that ``moved`` leaves, None when it has no other."""
        others = await self._find({"shard": moved.shard, "_id": {"$ne": moved.id}}, sort=_IN_ORDER, limit=1)
        return others[0] if others else None

    async def write(self, changes: ChunkChanges) -> None:
        """Write what a change makes of the chunks."""
        if changes.deleted:
            await self._transaction.delete("chunks", {"_id": {"$in": [chunk.id for chunk in changes.deleted]}})
        await self._transaction.replace("chunks", [chunk.to_document() for chunk in changes.written])

    async def _find(
        self, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None, limit: int = 0
    ) -> list[Chunk]:
        documents = await self._transaction.find("chunks", {"uuid": self._uuid, **query}, sort=sort, limit=limit)
        return list(self._parse(documents))

    def _parse(self, documents: Iterable[Mapping[str, Any]]) -> Iterable[Chunk]:
        epoch, timestamp = self.collection.epoch, self.collection.timestamp
        return (Chunk.from_document(document, epoch=epoch, timestamp=timestamp) for document in documents)


def bounds_document(chunk: Chunk, version: ChunkVersion | None = None) -> dict[str, Any]:
    """A chunk as changelog entries show it: ``{min, max, lastmod}``."""
    return {
        "min": bson.decode(chunk.min),
        "max": bson.decode(chunk.max),
        "lastmod": (version or chunk.version).to_document(),
    }


def _document(bound: bytes) -> Mapping[str, Any]:
    return rawbson.raw_document(bound)
