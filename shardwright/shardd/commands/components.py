"""What the commands of a shard daemon work with."""

from dataclasses import dataclass

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.service import CoordinatorService
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions


@dataclass(frozen=True, slots=True)
class ShardComponents:
    """The components of a shard daemon that have commands of their own, and the context for all others."""

    context: ShardContext
    range_deletions: RangeDeletions
    migrations: Migrations
    coordinators: CoordinatorService
