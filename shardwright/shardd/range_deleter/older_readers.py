"""Before the first document of an incoming range is written: nothing that reads already may come to see it.

Who read before the range came reads it from its donor. Operations that begin from now on have the filter. Those under
way are of three kinds, and a move waits for none of the readers among them for long:

- reads that have not answered are discarded and run again with a filter (`ShardHandler`);
- open cursors get their batches looked through (`older_cursors`);
- writes under way, such as a long ``updateMany``, cannot be repeated. If they do not end in time the range is refused.
"""

from typing import Final

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.older_cursors import OlderCursors
from shardwright.shardd.orphans.orphan_ranges import orphan_ranges
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.range_deletion_task import RangeDeletionTask
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

READS_SECONDS_MAX: Final = 1.0
"""How long reads under way are waited for; it is cheaper than to repeat them."""

WRITES_SECONDS_MAX: Final = 10.0


async def hide_from_older_readers(state: NamespaceState, cursors: OlderCursors, hidden: OwnershipFilter) -> None:
    """See to it that nothing that is under way on a collection sees what is written into some ranges after this.

    Args:
        state: of the collection.
        cursors: where those that are open now are found.
        hidden: the ranges.

    Raises:
        CommandError: LockTimeout, a write from before is still under way; or mongod refuses.
        BackendError: mongod does not answer.
    """
    with trio.move_on_after(READS_SECONDS_MAX):
        await state.wait_earlier_operations()
    with trio.move_on_after(WRITES_SECONDS_MAX) as patience:
        await state.wait_earlier_writes()
    if patience.cancelled_caught:
        raise CommandError(
            ErrorCode.LockTimeout,
            f"a write that began before a range of {state.namespace} is to come in is still under way and might see it",
        )
    state.supersede_earlier_reads()
    await cursors.hide(state.namespace, hidden)


async def hide_from_cursors_of_secondary(state: NamespaceState, cursors: OlderCursors, task: RangeDeletionTask) -> None:
    """Have the cursors on this secondary show nothing that its primary writes into an incoming range.

    They may have been opened while this was the primary. The range does not wait for them, so those that cannot be
    looked through are ended at once.

    Args:
        state: of the collection.
        cursors: where those that are open now are found.
        task: the range, as the primary has registered it.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    if state.last_table is None or task.donor == state.shard:
        return  # nobody has read the collection through this daemon; or the range is on its way out
    table = state.last_table
    # By a table that gives the range to this shard, readers that are to see it may have begun already.
    ranges = orphan_ranges([task], table, state.shard)
    if ranges:
        hidden = OwnershipFilter(table.key_pattern, ranges, table.collection.default_collation)
        await cursors.hide(task.namespace, hidden, end_after_seconds=0)


async def close_cursor(mongod: LocalMongod, namespace: Namespace, body: bytes) -> None:
    """Close the cursor that an answer has opened which nobody gets.

    Raises:
        BackendError: mongod does not answer.
    """
    cursor = rawbson.find(body, b"cursor")
    if cursor is None:
        return
    cursor_id = rawbson.decode_value(body, rawbson.index(body, cursor[2])[b"id"])
    if cursor_id:
        await mongod.command(namespace.db, {"killCursors": namespace.collection, "cursors": [cursor_id]})
