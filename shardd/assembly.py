"""Putting the components of a shard daemon together, each after those that it is made with."""

from shardd.coordinators.service import CoordinatorService
from shardd.migration.history.table import HistoryTable
from shardd.migration.migrations import Migrations
from shardd.migration.reserved_sessions import ReservedSessions
from shardd.orphans.range_deletions import RangeDeletions
from shardd.shard import Shard


def assemble(shard: Shard) -> None:
    """Give a shard the components that `Shard` names."""
    shard.reserved_sessions = ReservedSessions(shard.mongod)
    shard.range_deletions = RangeDeletions(shard)
    shard.history_table = HistoryTable(shard.mongod)
    shard.migrations = Migrations(shard)
    shard.coordinators = CoordinatorService(shard)
