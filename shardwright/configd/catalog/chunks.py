"""The chunks and zone ranges of one sharded collection, read and changed in a transaction; bounds in commands.

The zones of a renamed collection follow it one by one, because there may be any number. Until all have followed, the
collection's entry has a mark, and migrations remain forbidden.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.binary import Binary

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import CollectionEntry, TagEntry
from shardwright.sharding.chunk_changes import (
    ChunkChanges,
    bounds_to_refine,
    chunk_update,
    chunks_to_refine,
    refined_chunk,
    zone_update,
)
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document

_NEWEST_FIRST = {"lastmod": -1}
_IN_ORDER = {"min": 1}

FIELDS_DIFFER = 16634
"""MongoDB's code for ranges of one collection whose bounds have different fields."""


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


@dataclass(frozen=True, slots=True)
class ZoneBounds:
    """A range of a collection, as documents and as the keys for comparing them."""

    min: bytes
    max: bytes

    @classmethod
    def parse(cls, low: bytes, high: bytes) -> "ZoneBounds":
        """Parse a range from its bounds.

        Raises:
            CommandError: FailedToParse, the range is empty; 16634, the bounds have different fields.
        """
        if encode_key(low) >= encode_key(high):
            raise CommandError(
                ErrorCode.FailedToParse, f"min: {document_text(low)} should be less than max: {document_text(high)}"
            )
        return cls(low, high)

    def extended_to(self, pattern: ShardKeyPattern, namespace: Namespace) -> "ZoneBounds":
        """Extend the bounds to full shard keys; raises ShardKeyNotFound if their fields are not a prefix of the key."""
        return ZoneBounds(_extend(pattern, self.min, "min", namespace), _extend(pattern, self.max, "max", namespace))

    def check_hashes(self, pattern: ShardKeyPattern) -> None:
        """Refuse full bounds without a hash in a hashed field with InvalidOptions, because no chunk can begin there."""
        if not (pattern.has_hashes(self.min) and pattern.has_hashes(self.max)):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"there exists a field in the range {document_text(self.min)} -->> {document_text(self.max)} not of"
                " type NumberLong, MinKey, or MaxKey which corresponds to a hashed field in the shard key pattern"
                f" {document_text(pattern.document)}",
            )

    def check_against(self, others: Iterable[TagEntry], zone: str) -> None:
        """Refuse a range that overlaps another range of the collection; an identical range may get another zone.

        Raises:
            CommandError: RangeOverlapConflict; 16634, the other range's bounds have different fields.
        """
        low, high = encode_key(self.min), encode_key(self.max)
        for other in others:
            other_min, other_max = rawbson.encode_document(other.min), rawbson.encode_document(other.max)
            self._check_same_fields(other_max)
            other_low, other_high = encode_key(other_min), encode_key(other_max)
            if (other_low, other_high) != (low, high) and other_low < high and low < other_high:
                raise CommandError(
                    ErrorCode.RangeOverlapConflict,
                    f"Zone range: {document_text(self.min)} -->> {document_text(self.max)}  on  {zone} is overlapping"
                    f" with existing: {document_text(other_min)} -->> {document_text(other_max)}  on  {other.tag}",
                )

    def _check_same_fields(self, other: bytes) -> None:
        if _names(other) != _names(self.min):
            key_pattern = ", ".join(f"{name.decode(errors='replace')}: 1" for name in _names(self.min))
            raise CommandError(
                FIELDS_DIFFER,
                f"field names of bound {document_text(other)} do not match those of keyPattern {{ {key_pattern} }}",
            )


def _extend(pattern: ShardKeyPattern, bound: bytes, side: str, namespace: Namespace) -> bytes:
    try:
        return pattern.extend_range_bound(bound)
    except CommandError as error:
        raise CommandError(
            ErrorCode.ShardKeyNotFound,
            f"{side}: {document_text(bound)} is not a prefix of the shard key {pattern} of ns: {namespace}",
        ) from error


def _names(document: bytes) -> list[bytes]:
    return [name for name, _ in rawbson.spans(document)]


RENAMED_FROM: Final = "zonesBeingRenamed"
"""Our own field of the entry, with the former name."""


async def marked(transaction: Transaction, entry: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return an entry under its new name. It forbids migrations if zones have to follow from the former name."""
    kept = {name: value for name, value in entry.items() if name != "allowMigrations"}
    if not await transaction.find("tags", {"ns": source}, limit=1):
        return kept
    return {**kept, "allowMigrations": False, RENAMED_FROM: source}


async def finish_renames(catalog: Catalog, namespace: str) -> None:
    """Complete the renames from and to a name, so that its collection has exactly its own zones.

    Every change of zones has to call this first. Errors as `Catalog`.
    """
    marked_entries = {"$or": [{"_id": namespace, RENAMED_FROM: {"$exists": True}}, {RENAMED_FROM: namespace}]}
    for entry in await catalog.find("collections", marked_entries):
        await _rename_zones(catalog, entry[RENAMED_FROM], entry["_id"])


async def _rename_zones(catalog: Catalog, source: str, target: str) -> None:
    await catalog.update_many("tags", {"ns": source}, {"$set": {"ns": target}})

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": target})
        if present is not None:
            kept = {name: value for name, value in present.items() if name not in ("allowMigrations", RENAMED_FROM)}
            transaction.put("collections", [kept])

    await catalog.transaction(remove_mark)
