"""The chunks of one sharded collection, read and changed in a transaction; ranges and bounds in commands."""

from collections.abc import Mapping
from typing import Any

from bson.binary import Binary

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_changes import ChunkChanges
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.refined_key import (
    bounds_to_refine,
    chunk_update,
    chunks_to_refine,
    refined_chunk,
    zone_update,
)
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document

_NEWEST_FIRST = {"lastmod": -1}
_IN_ORDER = {"min": 1}


async def find_collection(transaction: Transaction, namespace: str) -> CollectionEntry | None:
    """Return the entry of a sharded collection; None if it is unsharded."""
    document = await transaction.find_one("collections", {"_id": namespace})
    return None if document is None else CollectionEntry.from_document(document)


class CollectionChunks:
    """The chunks of a collection in one transaction."""

    def __init__(self, transaction: Transaction, collection: CollectionEntry) -> None:
        self._transaction = transaction
        self.collection = collection
        self._uuid = Binary.from_uuid(collection.uuid)

    async def newest(self) -> Chunk:
        """Return the chunk with the highest version, which is the collection version.

        Every change to a chunk raises it, so a transaction that has read this chunk commits only if none has changed.
        Raises IncompatibleShardingMetadata if the collection has no chunks.
        """
        document = await self._transaction.find_one("chunks", {"uuid": self._uuid}, sort=_NEWEST_FIRST)
        if document is None:
            raise CommandError(
                ErrorCode.IncompatibleShardingMetadata,
                f"Could not find any chunks for collection {self.collection.namespace}",
            )
        return self._parse(document)

    async def version(self) -> ChunkVersion:
        """Return the collection version; errors as `newest`."""
        return (await self.newest()).version

    async def shard_version(self, shard: str) -> ChunkVersion:
        """Return the highest version of the chunks on a shard; 0|0 if it owns none."""
        chunk = await self._first({"shard": shard}, sort=_NEWEST_FIRST)
        return chunk.version if chunk else self._no_version

    async def shard_version_after(self, shard: str, changes: ChunkChanges) -> ChunkVersion:
        """Return a shard's version after ``changes`` that involve it; changes produce the highest versions."""
        if not changes.written:
            return await self.shard_version(shard)
        versions = [chunk.version for chunk in changes.written if chunk.shard == shard]
        return max(versions, key=lambda version: version.packed, default=self._no_version)

    @property
    def _no_version(self) -> ChunkVersion:
        return ChunkVersion(0, 0, self.collection.epoch, self.collection.timestamp)

    async def exactly(self, wanted: ChunkRange) -> Chunk | None:
        """Return the chunk with exactly these bounds, or None."""
        chunk = await self.at(wanted.min)
        return chunk if chunk is not None and chunk.range(self.collection.key).is_same_as(wanted) else None

    async def at(self, key: bytes) -> Chunk | None:
        """Return the chunk that contains a shard key; None for the global maximum."""
        pattern = self.collection.key
        chunk = await self._first({"min": {"$lte": _document(key)}}, sort={"min": -1})
        return chunk if chunk and chunk.range(pattern).contains_key(pattern.key_bytes(key)) else None

    async def before(self, key: bytes) -> Chunk | None:
        """Return the chunk that begins before a shard key and ends at or after it; None for the global minimum."""
        return await self._first({"min": {"$lt": _document(key)}}, sort={"min": -1})

    async def every(self) -> list[Chunk]:
        """Return all chunks, in order."""
        return await self.some({}, 0)

    async def some(self, query: Mapping[str, Any], limit: int) -> list[Chunk]:
        """Return the first chunks that match, in order: at most ``limit``, or all if that is 0."""
        query = {"uuid": self._uuid, **query}
        return [
            self._parse(each) for each in await self._transaction.find("chunks", query, sort=_IN_ORDER, limit=limit)
        ]

    async def overlapping(self, wanted: ChunkRange) -> list[Chunk]:
        """Return the chunks that overlap a range, in order."""
        first = await self.at(wanted.min)
        since = wanted.min if first is None else first.min
        query = {"uuid": self._uuid, "min": {"$gte": _document(since), "$lt": _document(wanted.max)}}
        return [self._parse(document) for document in await self._transaction.find("chunks", query, sort=_IN_ORDER)]

    async def control_chunk(self, moved: Chunk) -> Chunk | None:
        """Return another chunk of the donor of ``moved``, or None."""
        return await self._first({"shard": moved.shard, "_id": {"$ne": moved.id}}, sort=_IN_ORDER)

    async def owners(self) -> list[str]:
        """Return the shards that own chunks, by name; this takes one look-up per shard for any number of chunks."""
        owners: list[str] = []
        above: dict[str, Any] = {}
        while chunk := await self._first(above, sort={"shard": 1}):
            owners.append(chunk.shard)
            above = {"shard": {"$gt": chunk.shard}}
        return owners

    async def first_of_each_owner(self) -> list[Chunk]:
        """Return the first chunk of each shard that owns any, ordered by the shards' names."""
        found = [await self._first({"shard": owner}, sort=_IN_ORDER) for owner in await self.owners()]
        return [chunk for chunk in found if chunk is not None]

    def write(self, changes: ChunkChanges) -> None:
        """Write the result of a change; the transaction must have read `newest`."""
        self._transaction.delete("chunks", (chunk.id for chunk in changes.deleted))
        self._transaction.put("chunks", (chunk.to_document() for chunk in changes.written))

    async def _first(self, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None) -> Chunk | None:
        document = await self._transaction.find_one("chunks", {"uuid": self._uuid, **query}, sort=sort)
        return None if document is None else self._parse(document)

    def _parse(self, document: Mapping[str, Any]) -> Chunk:
        chunk = Chunk.from_document(document, epoch=self.collection.epoch, timestamp=self.collection.timestamp)
        return chunk if self.collection.refined_from is None else refined_chunk(chunk, self.collection.key)


def bounds_document(chunk: Chunk, version: ChunkVersion | None = None) -> dict[str, Any]:
    """Format a chunk as in changelog entries: ``{min, max, lastmod}``."""
    return {
        "min": decode_document(chunk.min),
        "max": decode_document(chunk.max),
        "lastmod": (version or chunk.version).to_document(),
    }


def _document(bound: bytes) -> Mapping[str, Any]:
    return rawbson.raw_document(bound)


def parse_range(pattern: ShardKeyPattern, low: bytes, high: bytes) -> ChunkRange:
    """Parse a range from its bounds; raises FailedToParse for an empty range."""
    if pattern.key_bytes(low) >= pattern.key_bytes(high):
        raise CommandError(
            ErrorCode.FailedToParse, f"min: {document_text(low)} should be less than max: {document_text(high)}"
        )
    return ChunkRange.of(pattern, low, high)


async def refine_zones(catalog: Catalog, entry: CollectionEntry) -> None:
    """Extend the remaining bounds of a collection's zones after a refinement; errors as `Catalog.insert`.

    Every change of zones has to call this first if the entry has the mark.
    """
    if entry.refined_from is not None:
        zones = {"ns": str(entry.namespace), **bounds_to_refine(entry.key)}
        old = ShardKeyPattern.from_mapping(entry.refined_from)
        await catalog.update_many("tags", zones, zone_update(old, entry.key))


async def refine_chunks(catalog: Catalog, entry: CollectionEntry) -> None:
    """Do the same for chunks as `refine_zones` for zones."""
    if entry.refined_from is not None:
        old = ShardKeyPattern.from_mapping(entry.refined_from)
        await catalog.update_many("chunks", chunks_to_refine(entry.uuid, entry.key), chunk_update(old, entry.key))
