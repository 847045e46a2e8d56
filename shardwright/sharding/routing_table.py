"""The routing table of one sharded collection: its attributes, and the owner of each range of shard key values.

Immutable: a refresh builds a new table, which shares all blocks of unchanged chunks with the old one. So its cost
depends on the changed chunks and not on the table. Keys are the byte strings of `ShardKeyPattern.key_bytes`, so a
look-up is two bisections, one over the blocks and one inside a block.

Chunks that do not tile the key space, as when they were read while the config server was changing them, raise
ConflictingOperationInProgress. Look-ups in the past raise StaleChunkHistory if the catalog has dropped the history.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.chunk_block import BlockRow, ChunkBlock
from shardwright.sharding.chunks import ChunkPlacement, ChunkRange
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table_build import (
    BlockBuilder,
    ChangedChunk,
    TableBlocks,
    latest_of_overlapping,
    replace_chunks,
    split_history,
)
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import ChunkVersion, shard_version_element
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@dataclass(frozen=True, slots=True)
class ShardedCollection:
    """One incarnation of a sharded collection, as in `config.collections`.

    ``time_series`` is set if it holds the buckets of a time-series collection.
    """

    namespace: Namespace
    uuid: UUID
    epoch: ObjectId
    timestamp: Timestamp
    key_pattern: ShardKeyPattern
    unique: bool = False
    default_collation: Mapping[str, Any] | None = None
    allow_migrations: bool = True
    max_chunk_size_bytes: int | None = None
    time_series: TimeSeriesFields | None = None

    def version(self, packed: int) -> ChunkVersion:
        """Return a version of this incarnation of the collection."""
        return ChunkVersion.from_packed(packed, self.epoch, self.timestamp)


class RoutedChunk(NamedTuple):
    """One chunk of a routing table; bounds as documents and as key bytes, version packed."""

    min: bytes
    max: bytes
    min_key: bytes
    max_key: bytes
    shard: str
    version: int


class RoutingTable:
    """Placement of the chunks of one collection, at one collection version."""

    __slots__ = (
        "_blocks",
        "_contents",
        "_elements",
        "_first_keys",
        "_global_max",
        "_global_max_key",
        "_nothing_element",
        "_nothing_version",
        "_owned",
        "_versions",
        "chunk_count",
        "collection",
        "collection_version",
        "newest_valid_after",
        "shards",
    )

    def __init__(self, collection: ShardedCollection, contents: TableBlocks) -> None:
        """Assume consistent blocks; use `build`, a `RoutingTableBuilder` or `with_changed_chunks`, which check them."""
        self.collection = collection
        self._contents = contents
        self._blocks, self._first_keys, owned, newest_valid_after = contents
        self._owned = owned
        self._global_max = collection.key_pattern.global_max()
        self._global_max_key = collection.key_pattern.global_max_bytes()
        self._versions = {shard: collection.version(total.version) for shard, total in owned.items()}
        self._elements = {shard: shard_version_element(version) for shard, version in self._versions.items()}
        self._nothing_version = collection.version(0)
        self._nothing_element = shard_version_element(self._nothing_version)
        self.shards = frozenset(owned)
        """Shards that own at least one chunk."""
        self.chunk_count = sum(total.chunks for total in owned.values())
        self.collection_version = collection.version(max(total.version for total in owned.values()))
        """Highest version of all chunks."""
        self.newest_valid_after = newest_valid_after
        """Packed time since which every chunk has been on its present shard."""

    @classmethod
    def build(cls, collection: ShardedCollection, chunks: Iterable[ChunkPlacement]) -> "RoutingTable":
        """Build a table from all chunks of a collection, in any order."""
        encode = collection.key_pattern.key_bytes
        builder = RoutingTableBuilder(collection)
        builder.add(sorted(chunks, key=lambda chunk: encode(chunk.min)))
        return builder.finish()

    def with_changed_chunks(
        self, changed: Iterable[ChunkPlacement], collection: ShardedCollection | None = None
    ) -> "RoutingTable":
        """Build the table after chunks changed.

        Args:
            changed: chunks of at least `collection_version`, as read from the catalog; the newer of two that overlap
                counts. Unchanged chunks may be among them.
            collection: the current attributes of the collection, of the same timestamp.
        """
        collection = collection or self.collection
        changes = latest_of_overlapping([self._changed_chunk(chunk) for chunk in changed])
        if not changes:
            return RoutingTable(collection, self._contents)
        return RoutingTable(collection, replace_chunks(self._contents, changes, self._global_max_key))

    def with_collection(self, collection: ShardedCollection) -> "RoutingTable":
        """Return the same chunks under changed attributes of the collection, of the same timestamp."""
        return RoutingTable(collection, self._contents)

    # Current placement

    def shard_for_key(self, key: bytes) -> str:
        """Return the shard that owns an encoded shard key value."""
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        return block.owners[block.owner_numbers[block.position_of(key)]]

    def chunk_for_key(self, key: bytes) -> RoutedChunk:
        """Return the chunk of an encoded shard key value."""
        at = bisect_right(self._first_keys, key) - 1
        return self._chunk(at, self._blocks[at].position_of(key))

    def chunk_before_key(self, key: bytes) -> RoutedChunk:
        """Return the chunk of the keys right before an encoded key, such as the end of a range."""
        at = max(bisect_left(self._first_keys, key) - 1, 0)
        return self._chunk(at, max(self._blocks[at].first_from(key) - 1, 0))

    def chunk_between(self, low: bytes, high: bytes, fraction: float) -> RoutedChunk:
        """Return one of the chunks that overlap ``[low, high)``: at a fraction, from 0 up to 1, of their number."""
        overlapped = list(self._overlapped(low, high, False))
        number = int(fraction * sum(end - first for _, first, end in overlapped))
        for block, first, end in overlapped:
            if number < end - first:
                return self._chunk(bisect_right(self._first_keys, block.first_key) - 1, first + number)
            number -= end - first
        return self.chunk_for_key(low)

    def shards_for_range(self, low: bytes, high: bytes, *, high_inclusive: bool = False) -> set[str]:
        """Return the shards that own some key in ``[low, high)``, or in ``[low, high]``.

        The bounds are any byte strings with ``low < high``, not necessarily whole keys: bytes compare as keys do.
        """
        if low <= self._first_keys[0] and high >= self._global_max_key:
            return set(self.shards)
        found: set[str] = set()
        for block, first, end in self._overlapped(low, high, high_inclusive):
            if first == 0 and end == len(block):
                found.update(block.owners)
            else:
                found |= block.owners_between(first, end)
            if len(found) == len(self.shards):
                break
        return found

    def chunks(self) -> Iterator[RoutedChunk]:
        """Yield all chunks in order."""
        for at, block in enumerate(self._blocks):
            for position in range(len(block)):
                yield self._chunk(at, position)

    def chunks_of_shard(self, shard: str) -> Iterator[RoutedChunk]:
        """Yield the chunks that one shard owns, in order."""
        for at, block in enumerate(self._blocks):
            for position in block.positions_of_shard(shard):
                yield self._chunk(at, position)

    def ranges_by_ownership(self, shard: str) -> Iterator[tuple[bool, ChunkRange]]:
        """Divide the key space into ranges that a shard owns or does not own, in turn; neighbours are merged."""
        begin: tuple[bytes, bytes] | None = None
        was_owned = False
        for block in self._blocks:
            for position, is_owned in block.runs_of_shard(shard):
                if begin is not None and is_owned is was_owned:
                    continue
                low, low_key = block.min_document(position), block.min_key(position)
                if begin is not None:
                    yield was_owned, ChunkRange(begin[0], low, begin[1], low_key)
                begin, was_owned = (low, low_key), is_owned
        assert begin is not None, "a table has a chunk"
        yield was_owned, ChunkRange(begin[0], self._global_max, begin[1], self._global_max_key)

    def placements_since(self, older: "RoutingTable | None" = None) -> Iterator[ChunkPlacement]:
        """Yield the chunks, with history, that ``older`` does not have; all of them without it.

        If both are of one incarnation of the collection, only blocks that ``older`` does not share are visited.
        """
        shared: set[int] = set()
        since = -1
        if older is not None and older.collection.timestamp == self.collection.timestamp:
            shared = {id(block) for block in older._blocks}
            since = older.collection_version.packed
        for at, block in enumerate(self._blocks):
            if id(block) in shared:
                continue
            for position, row in enumerate(block.rows()):
                if row.version > since:
                    history = (((row.valid_after, row.shard),) if row.valid_after else ()) + row.older
                    yield ChunkPlacement(row.min, self._chunk(at, position).max, row.shard, row.version, history)

    def chunk_count_of(self, shard: str) -> int:
        """Return the number of chunks that a shard owns."""
        return self._owned[shard].chunks if shard in self._owned else 0

    def owned_chunk(self, shard: str, number: int) -> RoutedChunk:
        """Return one of the chunks that a shard owns, by its number among them, in order; raise IndexError beyond."""
        for at, block in enumerate(self._blocks):
            owned = block.owned_by(shard).chunks
            if number < owned:
                return self._chunk(at, next(islice(block.positions_of_shard(shard), number, None)))
            number -= owned
        raise IndexError(number)

    # Past placement

    def shard_for_key_at(self, key: bytes, cluster_time: Timestamp) -> str:
        """Return the shard that owned an encoded key at a time in the past."""
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        return _owner_at(block, block.position_of(key), cluster_time)

    def valid_after_of_key(self, key: bytes) -> int:
        """Return the packed time at which the chunk of an encoded key came to its shard; 0 without history."""
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        valid_after: int = block.valid_after[block.position_of(key)]
        return valid_after

    def given_away(self, key: bytes, shard: str, cluster_time: Timestamp) -> tuple[Timestamp, str] | None:
        """Return the last time, up to a time in the past, at which a shard gave an encoded key away, and the new owner.

        None if the shard owned the key at that time, or the history has no earlier ownership by it.
        """
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        position = block.position_of(key)
        newest = (block.valid_after[position], block.shard(position))
        later: tuple[int, str] | None = None
        for valid_after, owner in (newest, *block.older(position)):
            if valid_after > pack_timestamp(cluster_time):
                continue
            if owner == shard:
                return None if later is None else (unpack_timestamp(later[0]), later[1])
            later = valid_after, owner
        return None

    def shards_for_range_at(
        self, low: bytes, high: bytes, cluster_time: Timestamp, *, high_inclusive: bool = False
    ) -> set[str]:
        """Return the shards that owned some key of the range, as in `shards_for_range`, at a time in the past."""
        time = pack_timestamp(cluster_time)
        found: set[str] = set()
        for block, first, end in self._overlapped(low, high, high_inclusive):
            if block.newest_valid_after > time:
                found.update(_owner_at(block, position, cluster_time) for position in range(first, end))
            elif first == 0 and end == len(block):
                found.update(block.owners)
            else:
                found |= block.owners_between(first, end)
        return found

    # Versions

    def shard_version(self, shard: str) -> ChunkVersion:
        """Return the shard version: the highest version of the chunks on a shard, 0|0 if it owns none."""
        return self._versions.get(shard, self._nothing_version)

    def shard_version_element(self, shard: str) -> bytes:
        """Return the ``shardVersion`` element for requests to a shard, ready for `rawbson.append`."""
        return self._elements.get(shard, self._nothing_element)

    # Shorthands

    @property
    def namespace(self) -> Namespace:
        """Name of the collection."""
        return self.collection.namespace

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """Shard key of the collection."""
        return self.collection.key_pattern

    def _chunk(self, at: int, position: int) -> RoutedChunk:
        block = self._blocks[at]
        if position + 1 < len(block):
            end, end_key = block.min_document(position + 1), block.min_key(position + 1)
        elif at + 1 < len(self._blocks):
            end, end_key = self._blocks[at + 1].min_document(0), self._first_keys[at + 1]
        else:
            end, end_key = self._global_max, self._global_max_key
        return RoutedChunk(
            block.min_document(position),
            end,
            block.min_key(position),
            end_key,
            block.shard(position),
            block.versions[position],
        )

    def _overlapped(self, low: bytes, high: bytes, high_inclusive: bool) -> Iterator[tuple[ChunkBlock, int, int]]:
        """Yield the blocks that a range touches, with the positions in each."""
        end_of = bisect_right if high_inclusive else bisect_left
        first_block = max(bisect_right(self._first_keys, low) - 1, 0)
        for at in range(first_block, end_of(self._first_keys, high)):
            block = self._blocks[at]
            first = block.position_of(low) if low > block.first_key else 0
            if high_inclusive:
                end = block.position_of(high) + 1 if high >= block.first_key else 0
            else:
                end = block.first_from(high)
            if first < end:
                yield block, first, end

    def _changed_chunk(self, chunk: ChunkPlacement) -> ChangedChunk:
        encode = self.collection.key_pattern.key_bytes
        valid_after, older = split_history(chunk.history)
        min_key = encode(chunk.min)
        row = BlockRow(min_key, chunk.min, chunk.shard, chunk.version, valid_after, older)
        return ChangedChunk(min_key, encode(chunk.max), row)


class RoutingTableBuilder:
    """Builder of a table from chunks as they arrive, without keeping them."""

    def __init__(self, collection: ShardedCollection) -> None:
        self._collection = collection
        self._blocks = BlockBuilder(collection.key_pattern)
        self._failure: CommandError | None = None

    def add(self, chunks: Iterable[ChunkPlacement]) -> None:
        """Add chunks, in the order of their keys."""
        if self._failure is None:
            try:
                self._blocks.add(chunks)
            except CommandError as error:
                self._failure = error

    def finish(self) -> RoutingTable:
        """Build the table of all chunks that were added; errors of the iteration over them are raised here."""
        if self._failure is not None:
            raise self._failure
        return RoutingTable(self._collection, TableBlocks.of(self._blocks.finish()))


def _owner_at(block: ChunkBlock, position: int, cluster_time: Timestamp) -> str:
    time = pack_timestamp(cluster_time)
    if block.valid_after[position] <= time:
        return block.shard(position)
    for valid_after, shard in block.older(position):
        if valid_after <= time:
            return shard
    raise CommandError(
        ErrorCode.StaleChunkHistory,
        f"Cannot find shardId the chunk belonged to at cluster time Timestamp({cluster_time.time}, {cluster_time.inc})",
    )
