"""The components that the daemon's own commands use."""

from dataclasses import dataclass
from typing import Any

from shardwright.shardd.commands.server_parameters import ServerParameters
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.blocked_collections import BlockedCollections
from shardwright.shardd.ddl.coordinators.service import CoordinatorService
from shardwright.shardd.ddl.rename_participants import RenameParticipants
from shardwright.shardd.migration.migrations import Migrations
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.resharding.service import ReshardingService
from shardwright.shardd.two_phase_commit.coordinator_operation import coordinator_operation
from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators


@dataclass(frozen=True, slots=True)
class ShardComponents:
    """The components of a shard daemon that have commands of their own, and the context for all other commands."""

    context: ShardContext
    parameters: ServerParameters
    range_deletions: RangeDeletions
    migrations: Migrations
    coordinators: CoordinatorService
    renames: RenameParticipants
    blocked: BlockedCollections
    transaction_coordinators: TransactionCoordinators
    resharding: ReshardingService
    waiting: WaitingOperations

    def operations(self) -> list[dict[str, Any]]:
        """The daemon's own operations, of which its mongod does not know, as ``currentOp`` shows them."""
        address = self.context.options.address
        commits = [coordinator_operation(each, address) for each in self.transaction_coordinators.running]
        resharding = self.resharding.operations()
        waiting = self.waiting.operations(address)
        return [*self.migrations.progress(), *self.coordinators.operations(), *resharding, *commits, *waiting]
