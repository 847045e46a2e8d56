"""Orphans without a range deletion.

Reads that are not pinned to a shard key do not filter them, and the range deleter will not delete them.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.range_scan import is_range_empty
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask, merged, range_of
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

ATTEMPTS_MAX: Final = 10
"""Maximum number of searches of a collection whose chunks keep moving."""


async def orphans_without_task(context: ShardContext, namespace: Namespace, uuid: UUID) -> Sequence[ChunkRange]:
    """Return the ranges with such orphans, each between two owned ranges or range deletions.

    A migration registers its range before it writes the first document, and removes it only after the placement has
    changed. So if the placement is the same before and after the search, orphans outside all ranges registered before
    or after it do not belong to a migration.

    Raises:
        CommandError: ConflictingOperationInProgress, the placement kept changing; or it cannot be read.
    """
    name = str(namespace)
    for _ in range(ATTEMPTS_MAX):
        before = context.range_deletion_tasks.of(name)
        table = await _table(context, name, uuid)
        if table is None:
            return ()
        found = [
            part
            for part in unowned(table, context.require_identity().shard_name, before)
            if not await is_range_empty(context.mongod, namespace, table.key_pattern, part)
        ]
        after = await _table(context, name, uuid)
        if after is not None and after.collection_version == table.collection_version:
            tasks = _ranges_of(table, context.range_deletion_tasks.of(name))
            return [part for part in found if not any(part.overlaps(each) for each in tasks)]
    raise CommandError(ErrorCode.ConflictingOperationInProgress, f"the chunks of {name} kept moving")


def unowned(table: RoutingTable, shard: str, tasks: Iterable[RangeDeletionTask]) -> list[ChunkRange]:
    """Return the ranges that a shard neither owns nor has a range deletion for, sorted and merged."""
    pattern = table.key_pattern
    excluded = _ranges_of(table, tasks)
    excluded += [part for is_owned, part in table.ranges_by_ownership(shard) if is_owned]
    gaps = []
    low, low_key = pattern.global_min(), pattern.global_min_bytes()
    for each in merged(excluded):
        if low_key < each.min_key:
            gaps.append(ChunkRange(low, each.min, low_key, each.min_key))
        low, low_key = each.max, each.max_key
    if low_key < pattern.global_max_bytes():
        gaps.append(ChunkRange(low, pattern.global_max(), low_key, pattern.global_max_bytes()))
    return gaps


def _ranges_of(table: RoutingTable, tasks: Iterable[RangeDeletionTask]) -> list[ChunkRange]:
    """Return the ranges of this collection's tasks; others may belong to a former collection with its name."""
    return [range_of(task, table.key_pattern) for task in tasks if task.collection_uuid == table.collection.uuid]


async def _table(context: ShardContext, namespace: str, uuid: UUID) -> RoutingTable | None:
    """Return the routing table on the config servers; None if the collection is another one now."""
    table = await context.refresher.current_table(context.namespace(namespace))
    return table if table is not None and table.collection.uuid == uuid else None
