"""The routing table of one sharded collection: which shard owns which range of shard key values.

Immutable: a refresh makes a new table, which shares with the old one all blocks of chunks that did not change, so that
its cost is that of the changed chunks and not of the table. Keys are the byte strings of `ShardKeyPattern.key_bytes`,
so a look-up is two bisections, one over the blocks and one inside a block.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import CHUNKS_PER_BLOCK, BlockRow, ChunkBlock, Owned, cut_into_blocks
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table_update import ChangedChunk, latest_of_overlapping, overlay
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.sharding.versions import ChunkVersion, shard_version_element
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_FRAGMENTATION_MAX: Final = 8
"""How many times more blocks than needed a table may have before it is cut again."""


@dataclass(frozen=True, slots=True)
class ShardedCollection:
    """What the catalog says of a sharded collection apart from its chunks."""

    namespace: Namespace
    uuid: UUID
    epoch: ObjectId
    timestamp: Timestamp
    key_pattern: ShardKeyPattern
    unique: bool = False
    default_collation: Mapping[str, Any] | None = None
    allow_migrations: bool = True
    max_chunk_size_bytes: int | None = None

    def version(self, packed: int) -> ChunkVersion:
        """A version of this incarnation of the collection."""
        return ChunkVersion.from_packed(packed, self.epoch, self.timestamp)


class RoutedChunk(NamedTuple):
    """One chunk as a routing table knows it; bounds as documents and as key bytes, version packed."""

    min: bytes
    max: bytes
    min_key: bytes
    max_key: bytes
    shard: str
    version: int


class RoutingTable:
    """Where the chunks of one collection are, at one collection version."""

    __slots__ = (
        "_blocks",
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

    def __init__(self, collection: ShardedCollection, blocks: list[ChunkBlock], owned: dict[str, Owned]) -> None:
        """Use `build`, or `with_changed_chunks` of a table: they check what this takes for granted.

        Args:
            collection: whose table it is.
            blocks: all chunks, without gap or overlap.
            owned: totals over all blocks.
        """
        self.collection = collection
        self._blocks = blocks
        self._owned = owned
        self._first_keys = [block.min_keys[0] for block in blocks]
        self._global_max = collection.key_pattern.global_max()
        self._global_max_key = collection.key_pattern.global_max_bytes()
        self._versions = {shard: collection.version(total.version) for shard, total in owned.items()}
        self._elements = {shard: shard_version_element(version) for shard, version in self._versions.items()}
        self._nothing_version = collection.version(0)
        self._nothing_element = shard_version_element(self._nothing_version)
        self.shards = frozenset(owned)
        """The shards that own at least one chunk."""
        self.chunk_count = sum(total.chunks for total in owned.values())
        self.collection_version = collection.version(max(total.version for total in owned.values()))
        """The highest version of all chunks."""
        self.newest_valid_after = max(block.newest_valid_after for block in blocks)
        """The packed time since which every chunk is where it is now."""

    @classmethod
    def build(cls, collection: ShardedCollection, chunks: Iterable[ChunkPlacement]) -> "RoutingTable":
        """A table from all chunks of a collection, in any order.

        Raises:
            CommandError: ConflictingOperationInProgress, the chunks do not tile the key space, as when they were
                read while the config server was changing them.
        """
        blocks = _cut_sorted(collection.key_pattern, chunks)
        return cls(collection, blocks, _total(blocks))

    def with_changed_chunks(
        self, changed: Iterable[ChunkPlacement], collection: ShardedCollection | None = None
    ) -> "RoutingTable":
        """The table after chunks changed.

        Args:
            changed: chunks of at least `collection_version`, as read from the catalog; the newer of two that overlap
                counts. A chunk that did not change does no harm.
            collection: what the catalog says of the collection now, of the same timestamp.

        Raises:
            CommandError: ConflictingOperationInProgress, with these changes the chunks do not tile the key space.
        """
        collection = collection or self.collection
        changes = latest_of_overlapping([self._changed_chunk(chunk) for chunk in changed])
        if not changes:
            return RoutingTable(collection, self._blocks, self._owned)
        blocks = list(self._blocks)
        removed: list[ChunkBlock] = []
        added: list[ChunkBlock] = []
        for first, last, run in reversed(list(self._runs_of_blocks(changes))):
            rows = [row for block in blocks[first : last + 1] for row in block.rows()]
            end_key = self._first_keys[last + 1] if last + 1 < len(self._first_keys) else self._global_max_key
            new = cut_into_blocks(overlay(rows, run, end_key))
            removed += blocks[first : last + 1]
            added += new
            blocks[first : last + 1] = new
        owned = self._totals_after(blocks, removed, added)
        table = RoutingTable(collection, blocks, owned)
        if len(blocks) * CHUNKS_PER_BLOCK > _FRAGMENTATION_MAX * (table.chunk_count + CHUNKS_PER_BLOCK):
            return RoutingTable(collection, cut_into_blocks([row for block in blocks for row in block.rows()]), owned)
        return table

    def with_collection(self, collection: ShardedCollection) -> "RoutingTable":
        """The same chunks under changed attributes of the collection, of the same timestamp."""
        return RoutingTable(collection, self._blocks, self._owned)

    # Where keys are

    def shard_for_key(self, key: bytes) -> str:
        """The shard that owns an encoded shard key value."""
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        return block.shards[bisect_right(block.min_keys, key) - 1]

    def chunk_for_key(self, key: bytes) -> RoutedChunk:
        """The chunk in which an encoded shard key value lies."""
        at = bisect_right(self._first_keys, key) - 1
        return self._chunk(at, bisect_right(self._blocks[at].min_keys, key) - 1)

    def chunk_before_key(self, key: bytes) -> RoutedChunk:
        """The chunk in which the keys lie that come right before an encoded key, as before the end of a range."""
        at = max(bisect_left(self._first_keys, key) - 1, 0)
        return self._chunk(at, max(bisect_left(self._blocks[at].min_keys, key) - 1, 0))

    def shards_for_range(self, low: bytes, high: bytes, *, high_inclusive: bool = False) -> set[str]:
        """The shards that own some key in ``[low, high)``, or in ``[low, high]``.

        The bounds are any byte strings with ``low < high``, not necessarily whole keys: bytes compare as keys do.
        """
        if low <= self._first_keys[0] and high >= self._global_max_key:
            return set(self.shards)
        found: set[str] = set()
        for block, first, end in self._overlapped(low, high, high_inclusive):
            if first == 0 and end == len(block):
                found.update(block.owned)
            else:
                found.update(block.shards[first:end])
            if len(found) == len(self.shards):
                break
        return found

    def chunks(self) -> Iterator[RoutedChunk]:
        """All chunks in order."""
        for at, block in enumerate(self._blocks):
            for position in range(len(block)):
                yield self._chunk(at, position)

    def chunks_of_shard(self, shard: str) -> Iterator[RoutedChunk]:
        """The chunks that one shard owns, in order."""
        for at, block in enumerate(self._blocks):
            if shard in block.owned:
                for position, owner in enumerate(block.shards):
                    if owner == shard:
                        yield self._chunk(at, position)

    def placements_since(self, older: "RoutingTable | None" = None) -> Iterator[ChunkPlacement]:
        """The chunks, with history, that ``older`` does not have; all of them without it.

        Of the same incarnation of the collection only blocks that ``older`` does not share are looked at.
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
        """How many chunks a shard owns."""
        return self._owned[shard].chunks if shard in self._owned else 0

    # Where keys were

    def shard_for_key_at(self, key: bytes, cluster_time: Timestamp) -> str:
        """The shard that owned an encoded key at a time in the past.

        Raises:
            CommandError: StaleChunkHistory, the catalog no longer knows.
        """
        block = self._blocks[bisect_right(self._first_keys, key) - 1]
        return _owner_at(block, bisect_right(block.min_keys, key) - 1, cluster_time)

    def shards_for_range_at(
        self, low: bytes, high: bytes, cluster_time: Timestamp, *, high_inclusive: bool = False
    ) -> set[str]:
        """The shards that owned some key of the range, as in `shards_for_range`, at a time in the past.

        Raises:
            CommandError: StaleChunkHistory, the catalog no longer knows for some chunk.
        """
        time = pack_timestamp(cluster_time)
        found: set[str] = set()
        for block, first, end in self._overlapped(low, high, high_inclusive):
            if block.newest_valid_after > time:
                found.update(_owner_at(block, position, cluster_time) for position in range(first, end))
            elif first == 0 and end == len(block):
                found.update(block.owned)
            else:
                found.update(block.shards[first:end])
        return found

    # Versions

    def shard_version(self, shard: str) -> ChunkVersion:
        """The highest version of the chunks on a shard, 0|0 when it owns none."""
        return self._versions.get(shard, self._nothing_version)

    def shard_version_element(self, shard: str) -> bytes:
        """The ``shardVersion`` element that goes with what is sent to a shard, ready for `rawbson.append`."""
        return self._elements.get(shard, self._nothing_element)

    # Shorthands

    @property
    def namespace(self) -> Namespace:
        """Whose table it is."""
        return self.collection.namespace

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key of the collection."""
        return self.collection.key_pattern

    def _chunk(self, at: int, position: int) -> RoutedChunk:
        block = self._blocks[at]
        if position + 1 < len(block):
            end, end_key = block.mins[position + 1], block.min_keys[position + 1]
        elif at + 1 < len(self._blocks):
            end, end_key = self._blocks[at + 1].mins[0], self._first_keys[at + 1]
        else:
            end, end_key = self._global_max, self._global_max_key
        return RoutedChunk(
            block.mins[position],
            end,
            block.min_keys[position],
            end_key,
            block.shards[position],
            block.versions[position],
        )

    def _overlapped(self, low: bytes, high: bytes, high_inclusive: bool) -> Iterator[tuple[ChunkBlock, int, int]]:
        """The blocks that a range touches, with the positions in each."""
        end_of = bisect_right if high_inclusive else bisect_left
        first_block = max(bisect_right(self._first_keys, low) - 1, 0)
        for block in self._blocks[first_block : end_of(self._first_keys, high)]:
            first = max(bisect_right(block.min_keys, low) - 1, 0)
            end = end_of(block.min_keys, high)
            if first < end:
                yield block, first, end

    def _changed_chunk(self, chunk: ChunkPlacement) -> ChangedChunk:
        encode = self.collection.key_pattern.key_bytes
        valid_after, older = _split_history(chunk.history)
        min_key = encode(chunk.min)
        row = BlockRow(min_key, chunk.min, _intern_shard(chunk.shard, self._owned), chunk.version, valid_after, older)
        return ChangedChunk(min_key, encode(chunk.max), row)

    def _runs_of_blocks(self, changes: Sequence[ChangedChunk]) -> Iterator[tuple[int, int, list[ChangedChunk]]]:
        """The changes in groups that concern the same neighbouring blocks: first block, last block, changes."""
        first = last = -1
        run: list[ChangedChunk] = []
        for change in changes:
            change_first = max(bisect_right(self._first_keys, change.min_key) - 1, 0)
            change_last = max(bisect_left(self._first_keys, change.max_key) - 1, change_first)
            if run and change_first > last:
                yield first, last, run
                run = []
            if not run:
                first, last = change_first, change_last
            run.append(change)
            last = max(last, change_last)
        yield first, last, run

    def _totals_after(
        self, blocks: list[ChunkBlock], removed: list[ChunkBlock], added: list[ChunkBlock]
    ) -> dict[str, Owned]:
        """What each shard owns after some blocks were replaced, without a look at the others unless it must be.

        It must be when a shard lost its highest chunk and none of its chunks got a higher version. The config server
        avoids that by raising a chunk that stays behind (the control chunk), so it is rare.
        """
        before, after = _total(removed), _total(added)
        totals = dict(self._owned)
        for shard in before.keys() | after.keys():
            none = Owned(0, -1)
            known, gone, come = totals.get(shard, none), before.get(shard, none), after.get(shard, none)
            count = known.chunks - gone.chunks + come.chunks
            if count == 0:
                totals.pop(shard)
            elif come.version >= known.version or gone.version < known.version:
                totals[shard] = Owned(count, max(come.version, known.version))
            else:
                totals[shard] = Owned(
                    count, max(block.owned[shard].version for block in blocks if shard in block.owned)
                )
        return totals


def _cut_sorted(pattern: ShardKeyPattern, chunks: Iterable[ChunkPlacement]) -> list[ChunkBlock]:
    """All chunks sorted, checked and cut into blocks.

    Columns instead of row objects hold them meanwhile, so that building takes little more memory than the table.
    """
    encode = pattern.key_bytes
    min_keys: list[bytes] = []
    mins: list[bytes] = []
    maxes: list[bytes] = []
    shards: list[str] = []
    versions = array("Q")
    valid_after = array("Q")
    older: dict[int, tuple[tuple[int, str], ...]] = {}
    shard_ids: dict[str, str] = {}
    for n, chunk in enumerate(chunks):
        min_keys.append(encode(chunk.min))
        mins.append(chunk.min)
        maxes.append(chunk.max)
        shards.append(shard_ids.setdefault(chunk.shard, chunk.shard))
        versions.append(chunk.version)
        newest, before = _split_history(chunk.history)
        valid_after.append(newest)
        if before:
            older[n] = before
    order = sorted(range(len(min_keys)), key=min_keys.__getitem__)
    _check_tiling(pattern, order, min_keys, mins, maxes)
    del maxes
    return [
        ChunkBlock(
            BlockRow(min_keys[n], mins[n], shards[n], versions[n], valid_after[n], older.get(n, ()))
            for n in order[start : start + CHUNKS_PER_BLOCK]
        )
        for start in range(0, len(order), CHUNKS_PER_BLOCK)
    ]


def _check_tiling(
    pattern: ShardKeyPattern, order: list[int], min_keys: list[bytes], mins: list[bytes], maxes: list[bytes]
) -> None:
    encode = pattern.key_bytes
    if not order:
        raise _inconsistent("there are no chunks")
    if min_keys[order[0]] != pattern.global_min_bytes():
        raise _inconsistent(f"nothing lies before {document_text(mins[order[0]])}")
    previous = order[0]
    for n in order[1:]:
        # Bounds that touch are nearly always written with the same bytes, which saves encoding them.
        if maxes[previous] != mins[n] and (max_key := encode(maxes[previous])) != min_keys[n]:
            what = "gap" if max_key < min_keys[n] else "overlap"
            raise _inconsistent(f"{what} between {document_text(maxes[previous])} and {document_text(mins[n])}")
        if min_keys[previous] == min_keys[n]:
            raise _inconsistent(f"two chunks begin at {document_text(mins[n])}")
        previous = n
    if encode(maxes[previous]) != pattern.global_max_bytes():
        raise _inconsistent(f"nothing lies after {document_text(maxes[previous])}")


def _total(blocks: Iterable[ChunkBlock]) -> dict[str, Owned]:
    totals: dict[str, Owned] = {}
    for block in blocks:
        for shard, owned in block.owned.items():
            known = totals.get(shard)
            totals[shard] = Owned(known.chunks + owned.chunks, max(known.version, owned.version)) if known else owned
    return totals


def _split_history(history: tuple[tuple[int, str], ...]) -> tuple[int, tuple[tuple[int, str], ...]]:
    """When the newest entry began, and all older entries; a chunk without history was always where it is."""
    return (history[0][0], history[1:]) if history else (0, ())


def _intern_shard(shard: str, known: Mapping[str, Any]) -> str:
    return next((each for each in known if each == shard), shard)


def _owner_at(block: ChunkBlock, position: int, cluster_time: Timestamp) -> str:
    time = pack_timestamp(cluster_time)
    if block.valid_after[position] <= time:
        return block.shards[position]
    for valid_after, shard in block.older.get(block.min_keys[position], ()):
        if valid_after <= time:
            return shard
    raise CommandError(
        ErrorCode.StaleChunkHistory,
        f"Cannot find shardId the chunk belonged to at cluster time Timestamp({cluster_time.time}, {cluster_time.inc})",
    )


def _inconsistent(what: str) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"The chunks read from the catalog are not consistent: {what}"
    )
