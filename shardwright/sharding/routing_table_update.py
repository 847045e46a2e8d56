"""Laying changed chunks over the chunks that a routing table had before."""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import NamedTuple

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import BlockRow
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class ChangedChunk(NamedTuple):
    """A chunk that was read from the catalog for a refresh."""

    min_key: bytes
    max_key: bytes
    row: BlockRow


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


def _key_at(keys: list[bytes], position: int, end_key: bytes) -> bytes:
    return keys[position] if position < len(keys) else end_key


def _partial(change: ChangedChunk) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress,
        "The chunks read from the catalog are not consistent: only part of a known chunk was replaced near"
        f" {document_text(change.row.min)}",
    )
