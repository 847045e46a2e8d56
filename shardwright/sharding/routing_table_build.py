"""Building the blocks of a routing table from all chunks of a collection, or from changed ones.

Keys of many values of one type are encoded at once, without a call for each number. Only types whose values all have
the same size have columns, so that `struct` reads a value from a known position.

Inconsistent chunks raise ConflictingOperationInProgress: a gap, an overlap, or one that would be replaced only in part.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import CHUNKS_PER_BLOCK, BlockRow, ChunkBlock, Owned, Row, cut_into_blocks
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.key_order import EXACT_INTEGERS, POSITIVE_RANK, encode_key, encoder_of, pack_positive
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BOOL, DATE, DOUBLE, INT32, INT64, OBJECT_ID, TIMESTAMP


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Values of one type: ``code`` is the format for `struct`, ``encode`` encodes such values into keys."""

    code: str
    size: int
    encode: Callable[[Sequence[Any]], list[bytes]]


def _numbers(kind: int, code: str) -> KeyColumn:
    encode_any, layout = encoder_of(kind), Struct(f"<{code}")
    pack, size = layout.pack, layout.size

    def encode(values: Sequence[Any]) -> list[bytes]:
        # The others are zero, negative, not a number, or possibly inexact.
        return [
            pack_positive(POSITIVE_RANK, value) if 0 < value <= EXACT_INTEGERS else encode_any(pack(value), 0, size)
            for value in values
        ]

    return KeyColumn(code, size, encode)


def _bytes(kind: int, size: int) -> KeyColumn:
    encode_one = encoder_of(kind)
    return KeyColumn(f"{size}s", size, lambda values: [encode_one(value, 0, size) for value in values])


KEY_COLUMNS: Final = {
    INT32: _numbers(INT32, "i"),
    INT64: _numbers(INT64, "q"),
    DOUBLE: _numbers(DOUBLE, "d"),
    DATE: _bytes(DATE, 8),
    TIMESTAMP: _bytes(TIMESTAMP, 8),
    OBJECT_ID: _bytes(OBJECT_ID, 12),
    BOOL: _bytes(BOOL, 1),
}
"""Columns by type."""


class BlockBuilder:
    """Packer of a collection's chunks into blocks as they arrive, which checks that they tile the key space.

    So building takes little more memory than the table, however many chunks there are.
    """

    def __init__(self, pattern: ShardKeyPattern) -> None:
        self._pattern = pattern
        self._blocks: list[ChunkBlock] = []
        self._rows: list[Row] = []
        self._last_key = b""
        self._end: bytes | None = None

    def add(self, chunks: Iterable[ChunkPlacement]) -> None:
        """Add chunks, in the order of their keys."""
        encode, rows, size = encode_key, self._rows, CHUNKS_PER_BLOCK
        last_key, end = self._last_key, self._end
        for chunk in chunks:
            min_document, max_document, shard, version, history = chunk
            key = encode(min_document)
            # Bounds that touch nearly always have the same bytes, which saves encoding them.
            if min_document != end or key <= last_key:
                self._check_follows(chunk, last_key, end)
            valid_after, older = (history[0][0], history[1:]) if history else (0, ())  # `split_history`, without a call
            rows.append((key, min_document, shard, version, valid_after, older))
            if len(rows) == size:
                self._blocks.append(ChunkBlock(rows))
                rows.clear()
            last_key, end = key, max_document
        self._last_key, self._end = last_key, end

    def finish(self) -> list[ChunkBlock]:
        """Return the blocks, when all chunks have been added; there must be some, up to the end of the key space."""
        if self._rows:
            self._blocks.append(ChunkBlock(self._rows))
            self._rows = []
        if self._end is None:
            raise _inconsistent("there are no chunks")
        if self._pattern.key_bytes(self._end) != self._pattern.global_max_bytes():
            raise _inconsistent(f"nothing lies after {document_text(self._end)}")
        return self._blocks

    def _check_follows(self, chunk: ChunkPlacement, last_key: bytes, end: bytes | None) -> None:
        key = self._pattern.key_bytes(chunk.min)
        if end is None:
            if key != self._pattern.global_min_bytes():
                raise _inconsistent(f"nothing lies before {document_text(chunk.min)}")
            return
        end_key = self._pattern.key_bytes(end)
        if end_key != key:
            what = "gap" if end_key < key else "overlap"
            raise _inconsistent(f"{what} between {document_text(end)} and {document_text(chunk.min)}")
        if key <= last_key:
            raise _inconsistent(f"two chunks begin at {document_text(chunk.min)}")


def split_history(history: tuple[tuple[int, str], ...]) -> tuple[int, tuple[tuple[int, str], ...]]:
    """Split a history into the beginning of the newest entry, and all older entries; 0 without history."""
    return (history[0][0], history[1:]) if history else (0, ())


def _inconsistent(what: str) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"The chunks read from the catalog are not consistent: {what}"
    )


_FRAGMENTATION_MAX: Final = 8
"""Ratio of blocks to needed blocks above which a table is cut again."""


class ChangedChunk(NamedTuple):
    """A chunk that was read from the catalog for a refresh."""

    min_key: bytes
    max_key: bytes
    row: BlockRow


class TableBlocks(NamedTuple):
    """The blocks of a table, with the summaries that look-ups need.

    Attributes:
        owned: each shard's share of all blocks.
        newest_valid_after: the packed time since which every chunk has been on its present shard.
    """

    blocks: list[ChunkBlock]
    first_keys: list[bytes]
    owned: dict[str, Owned]
    newest_valid_after: int

    @classmethod
    def of(cls, blocks: list[ChunkBlock]) -> "TableBlocks":
        """Summarise these blocks."""
        return cls(blocks, [block.first_key for block in blocks], total_owned(blocks), _newest_valid_after(blocks))


def latest_of_overlapping(changes: list[ChangedChunk]) -> list[ChangedChunk]:
    """Keep, of overlapping chunks, only the one of the highest version; return all in order of their keys.

    A read during the commit of a split can return both a chunk and the parts it was split into.
    """
    changes = sorted(changes)
    if all(left.max_key <= right.min_key for left, right in pairwise(changes)):
        return changes
    kept: list[ChangedChunk] = []
    for change in sorted(changes, key=lambda each: each.row.version, reverse=True):
        after = bisect_right(kept, change)
        free_before = after == 0 or kept[after - 1].max_key <= change.min_key
        free_behind = after == len(kept) or change.max_key <= kept[after].min_key
        if free_before and free_behind:
            kept.insert(after, change)
    return kept


def overlay(rows: list[BlockRow], changes: list[ChangedChunk], end_key: bytes) -> list[BlockRow]:
    """Replace the ranges of ``changes`` in ``rows``, which follow one another up to ``end_key``.

    The changes do not overlap one another, and are in order.
    """
    keys = [row.min_key for row in rows]
    result: list[BlockRow] = []
    covered = keys[0]
    position = 0  # of the first row at or after ``covered``
    for change in changes:
        if change.min_key != covered:
            until = bisect_left(keys, change.min_key)
            if _key_at(keys, position, end_key) != covered or _key_at(keys, until, end_key) != change.min_key:
                raise _partial(change)
            result += rows[position:until]
        result.append(change.row)
        covered = change.max_key
        position = bisect_left(keys, covered)
    if _key_at(keys, position, end_key) != covered:
        raise _partial(changes[-1])
    result += rows[position:]
    return result


def replace_chunks(before: TableBlocks, changes: Sequence[ChangedChunk], global_max_key: bytes) -> TableBlocks:
    """Replace chunks of a table, rebuilding only their blocks. ``before`` is not modified.

    The changes, at least one, do not overlap one another, and are in order. ``global_max_key`` is the end of the last
    block.
    """
    blocks, first_keys = before.blocks, before.first_keys
    # Copies of pointers. Nothing else here grows with the number of blocks.
    result, result_keys = list(blocks), list(first_keys)
    removed: list[ChunkBlock] = []
    added: list[ChunkBlock] = []
    for first, last, run in reversed(list(_runs_of_blocks(first_keys, changes))):
        rows = [row for block in blocks[first : last + 1] for row in block.rows()]
        end_key = first_keys[last + 1] if last + 1 < len(first_keys) else global_max_key
        rebuilt = cut_into_blocks(overlay(rows, run, end_key))
        removed += blocks[first : last + 1]
        added += rebuilt
        result[first : last + 1] = rebuilt
        result_keys[first : last + 1] = [block.first_key for block in rebuilt]
    owned = _totals_after(before.owned, result, removed, added)
    chunk_count = sum(total.chunks for total in owned.values())
    if len(result) * CHUNKS_PER_BLOCK > _FRAGMENTATION_MAX * (chunk_count + CHUNKS_PER_BLOCK):
        return TableBlocks.of(cut_into_blocks([row for block in result for row in block.rows()]))
    newest = max(before.newest_valid_after, _newest_valid_after(added))
    if newest == _newest_valid_after(removed):
        newest = _newest_valid_after(result)
    return TableBlocks(result, result_keys, owned, newest)


def total_owned(blocks: Iterable[ChunkBlock]) -> dict[str, Owned]:
    """Add up each shard's share of some blocks."""
    totals: dict[str, Owned] = {}
    for block in blocks:
        for shard, owned in block.owned():
            known = totals.get(shard)
            totals[shard] = Owned(known.chunks + owned.chunks, max(known.version, owned.version)) if known else owned
    return totals


def _runs_of_blocks(
    first_keys: list[bytes], changes: Sequence[ChangedChunk]
) -> Iterator[tuple[int, int, list[ChangedChunk]]]:
    """Group the changes that concern the same neighbouring blocks: first block, last block, changes."""
    first = last = -1
    run: list[ChangedChunk] = []
    for change in changes:
        change_first = max(bisect_right(first_keys, change.min_key) - 1, 0)
        change_last = max(bisect_left(first_keys, change.max_key) - 1, change_first)
        if run and change_first > last:
            yield first, last, run
            run = []
        if not run:
            first, last = change_first, change_last
        run.append(change)
        last = max(last, change_last)
    yield first, last, run


def _totals_after(
    owned: Mapping[str, Owned],
    blocks: Sequence[ChunkBlock],
    removed: Iterable[ChunkBlock],
    added: Iterable[ChunkBlock],
) -> dict[str, Owned]:
    """Return each shard's share after some blocks were replaced.

    Scans all ``blocks`` only for a shard that lost its highest chunk while none of its other chunks got a higher
    version. The config server avoids that by raising the version of a chunk that stays behind (the control chunk).
    """
    before, after = total_owned(removed), total_owned(added)
    totals = dict(owned)
    none = Owned(0, -1)
    for shard in before.keys() | after.keys():
        known, lost, gained = totals.get(shard, none), before.get(shard, none), after.get(shard, none)
        count = known.chunks - lost.chunks + gained.chunks
        if count == 0:
            totals.pop(shard)
        elif gained.version >= known.version or lost.version < known.version:
            totals[shard] = Owned(count, max(gained.version, known.version))
        else:
            totals[shard] = Owned(count, max(block.owned_by(shard).version for block in blocks))
    return totals


def _newest_valid_after(blocks: Iterable[ChunkBlock]) -> int:
    return max((block.newest_valid_after for block in blocks), default=0)


def _key_at(keys: list[bytes], position: int, end_key: bytes) -> bytes:
    return keys[position] if position < len(keys) else end_key


def _partial(change: ChangedChunk) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress,
        "The chunks read from the catalog are not consistent: only part of a known chunk was replaced near"
        f" {document_text(change.row.min)}",
    )
