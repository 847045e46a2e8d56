"""Laying changed chunks over the chunks that a routing table had before."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import CHUNKS_PER_BLOCK, BlockRow, ChunkBlock, Owned, cut_into_blocks
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_FRAGMENTATION_MAX: Final = 8
"""How many times more blocks than needed a table may have before it is cut again."""


class ChangedChunk(NamedTuple):
    """A chunk that was read from the catalog for a refresh."""

    min_key: bytes
    max_key: bytes
    row: BlockRow


class TableBlocks(NamedTuple):
    """The blocks of a table, with what look-ups need of all of them.

    Attributes:
        blocks: all chunks in order, without gap or overlap.
        first_keys: the first key of each block.
        owned: what each shard owns of all blocks.
        newest_valid_after: the packed time since which every chunk is where it is now.
    """

    blocks: list[ChunkBlock]
    first_keys: list[bytes]
    owned: dict[str, Owned]
    newest_valid_after: int

    @classmethod
    def of(cls, blocks: list[ChunkBlock]) -> "TableBlocks":
        """These blocks."""
        return cls(blocks, [block.first_key for block in blocks], total_owned(blocks), _newest_valid_after(blocks))


def latest_of_overlapping(changes: list[ChangedChunk]) -> list[ChangedChunk]:
    """Of chunks that overlap only the one of the highest version, all in order of their keys.

    A chunk and the parts it was split into can both be among what is read while the split commits.
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
    """``rows`` with the ranges of ``changes`` replaced.

    Args:
        rows: chunks that follow one another.
        changes: chunks that do not overlap one another, in order.
        end_key: where the last of ``rows`` ends.

    Raises:
        CommandError: ConflictingOperationInProgress, a chunk would be replaced only in part.
    """
    keys = [row.min_key for row in rows]
    result: list[BlockRow] = []
    covered = keys[0]
    position = 0  # of the first row at or behind ``covered``
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
    """Replace chunks of a table, rebuilding only the blocks they lie in.

    Args:
        before: the blocks of the table, left as they are.
        changes: chunks that do not overlap one another, in order; at least one.
        global_max_key: where the last block ends.

    Raises:
        CommandError: ConflictingOperationInProgress, a chunk would be replaced only in part.
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
    """What each shard owns of some blocks."""
    totals: dict[str, Owned] = {}
    for block in blocks:
        for shard, owned in block.owned():
            known = totals.get(shard)
            totals[shard] = Owned(known.chunks + owned.chunks, max(known.version, owned.version)) if known else owned
    return totals


def _runs_of_blocks(
    first_keys: list[bytes], changes: Sequence[ChangedChunk]
) -> Iterator[tuple[int, int, list[ChangedChunk]]]:
    """The changes in groups that concern the same neighbouring blocks: first block, last block, changes."""
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
    """What each shard owns after some blocks were replaced.

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
