"""Hiding an incoming range from older operations, before its first document is written.

A read that is older than the migration sees the range on its donor, so it must not see it here as well. Operations that
begin from now on have the ownership filter. Running operations are of three kinds, and the migration never waits long
for readers:

- Unanswered reads are discarded and run again with a filter (`VersionedOperations`).
- The range is hidden from open cursors (`fenced_cursors`).
- Writes, such as a long ``updateMany``, cannot be repeated. If they do not end in time, the range is refused.

Functions that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
"""

from collections.abc import Callable
from typing import Final

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask, orphan_ranges
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch, id_in_reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

READS_SECONDS_MAX: Final = 0.2
"""Maximum wait for running reads, which is cheaper than repeating them."""

WRITES_SECONDS_MAX: Final = 10.0


async def hide_from_older_readers(state: NamespaceState, cursors: FencedCursors, hidden: OwnershipFilter) -> None:
    """Hide later writes to some ranges from all running operations; LockTimeout if an older write does not end."""
    with trio.move_on_after(READS_SECONDS_MAX):
        await state.wait_earlier_operations()
    with trio.move_on_after(WRITES_SECONDS_MAX) as patience:
        await state.wait_earlier_writes()
    if patience.cancelled_caught:
        raise CommandError(
            ErrorCode.LockTimeout,
            f"a write that began before a range of {state.namespace} was to be received is still running",
        )
    state.supersede_earlier_reads(hidden)
    await cursors.hide(state.namespace, hidden)


async def hide_from_cursors_of_secondary(
    state: NamespaceState, cursors: FencedCursors, task: RangeDeletionTask
) -> None:
    """Hide an incoming range, before the primary writes it, from the cursors that are open on this secondary.

    They may have been opened while this was the primary. The migration does not wait for them.
    """
    if state.last_table is None or task.donor == state.shard:
        return  # no read of the collection came through this daemon, or the range is leaving this shard
    table = state.last_table
    # If the table already assigns the range to this shard, nothing is hidden: readers may rightly see it.
    ranges = orphan_ranges([task], table, state.shard)
    if ranges:
        hidden = OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation)
        await cursors.hide(task.namespace, hidden)


async def close_cursor(mongod: LocalMongod, namespace: Namespace, body: bytes) -> None:
    """Close the cursor of a discarded reply."""
    cursor_id = _cursor_id(body)
    if cursor_id:
        await mongod.command(namespace.db, {"killCursors": namespace.collection, "cursors": [cursor_id]})


def has_more(frame: bytes, results_max: Callable[[], int | None]) -> bool:
    """Whether a first batch leaves a cursor open that may return more documents.

    mongod keeps some exhausted cursors open.

    Args:
        results_max: returns the maximum number of documents of the cursor, None without a limit.
    """
    cursor_id = id_in_reply(frame)
    if cursor_id is None or not any(frame[cursor_id[2] : cursor_id[3]]):
        return False
    most = results_max()
    return most is None or len(RawBatch(frame).documents()) < most


def _cursor_id(body: bytes) -> int:
    cursor = rawbson.find(body, b"cursor")
    return 0 if cursor is None else int(rawbson.decode_value(body, rawbson.index(body, cursor[2])[b"id"]))
