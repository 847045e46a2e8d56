"""Putting the components of a shard daemon together, each after those that it is made with."""

from shardwright.shardd.context.shard import Shard
from shardwright.shardd.ddl.coordinators.service import CoordinatorService
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.session_history.table import HistoryTable


def assemble(shard: Shard) -> None:
    """Give a shard the components that `Shard` names."""
    shard.reserved_sessions = ReservedSessions(shard.mongod)
    shard.range_deletions = RangeDeletions(shard)
    shard.history_table = HistoryTable(shard.mongod)
    shard.migrations = Migrations(shard)
    shard.coordinators = CoordinatorService(shard)
