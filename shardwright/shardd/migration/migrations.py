"""The migrations of one shard daemon, in either direction."""

from typing import TYPE_CHECKING, Any

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.active_migrations import ActiveMigrations
from shardwright.shardd.migration.client_load import ClientLoad
from shardwright.shardd.migration.donor.donor_operation import donor_operation
from shardwright.shardd.migration.donor.donor_service import DonorService
from shardwright.shardd.migration.parameters import MigrationParameters
from shardwright.shardd.migration.recipient.peers import RecipientPeers
from shardwright.shardd.migration.recipient.recipient_operation import recipient_operation
from shardwright.shardd.migration.recipient.service import RecipientService
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.session_history.table import HistoryTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.request import MoveRangeRequest


class Migrations:
    """What moves from this shard to another, or from another to this one.

    Args:
        context: of this shard daemon.
        range_deletions: of this shard.
        sessions: in which documents are written.
        history_table: where the history of received ranges goes.

    Attributes:
        parameters: what can be set about migrations.
        donor: gives ranges.
        recipient: receives ranges.
        client_load: how busy clients keep this daemon.
    """

    def __init__(
        self,
        context: ShardContext,
        range_deletions: RangeDeletions,
        sessions: ReservedSessions,
        history_table: HistoryTable,
    ) -> None:
        self.parameters = MigrationParameters()
        self.client_load = ClientLoad(context.metrics.operations)
        self._context = context
        self._range_deletions = range_deletions
        self._sessions = sessions
        self._active = ActiveMigrations()
        self.donor = DonorService(context, range_deletions, self._active, self.parameters)
        peers = RecipientPeers(range_deletions, sessions, history_table, self.client_load)
        self.recipient = RecipientService(context, peers, self._active)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Recover what the last primary has left under way; its critical sections are on when this returns.

        Nothing here may wait for another server, nor for what operations wait for.

        Args:
            term: which begins.
            nursery: of the term, in which migrations run until step-down.

        Raises:
            CommandError: it could not be read what there is.
            BackendError: mongod does not answer.
        """
        unfinished = await self.donor.load()
        await self.recipient.begin_term(nursery)
        await self.donor.recover(unfinished, nursery)

    def end_term(self) -> None:
        """The migrations have been cancelled with their nursery; the next primary goes on with them."""
        self.donor.end_term()
        self.recipient.end_term()

    async def move_range(self, request: "MoveRangeRequest") -> None:
        """Give a range to another shard, or wait for the end of the same migration if it is under way.

        A new primary finds out first which migrations are under way.

        Raises:
            CommandError: it failed; NotWritablePrimary; ConflictingOperationInProgress, another migration is under way.
        """
        await self._context.recovery_gate.wait_open()
        active = self.donor.start(request)
        await active.wait_result()
        if request.wait_for_delete and active.migration_id is not None:
            await self._range_deletions.wait_deleted(active.migration_id)

    async def abort_all(self, namespace: str, reason: str) -> None:
        """Abort the migration of a collection in which this shard is donor, and wait for its end.

        One that has come to its commit is not aborted; it is only waited for.
        """
        active = self._active.donor
        if active is not None and active.key.namespace == namespace:
            active.abort(CommandError(ErrorCode.ConflictingOperationInProgress, reason))
            await active.ended.wait()

    async def end_all(self, namespace: str, reason: str) -> None:
        """End the migration of a collection in either direction; nothing of it is written when this returns.

        Raises:
            CommandError: ConflictingOperationInProgress, what is received waits for the donor's decision; mongod
                refuses.
            BackendError: mongod does not answer.
        """
        await self.abort_all(namespace, reason)
        await self.recipient.end(namespace)
        # A transaction of it that was cut off may be under way in mongod still.
        async with self._sessions.session():
            pass

    def kill(self, opid: int) -> bool:
        """Abort the migration that `progress` shows under a number; returns whether there is one."""
        giving, receiving = self._active.donor, self.recipient.active
        if giving is not None and giving.opid == opid:
            giving.abort(CommandError(ErrorCode.Interrupted, "operation was interrupted"))
            return True
        if receiving is not None and receiving.opid == opid:
            receiving.kill()
            return True
        return False

    def progress(self) -> list[dict[str, Any]]:
        """The migration under way, in either direction, as ``currentOp`` shows it."""
        giving, receiving = self._active.donor, self.recipient.active
        address = self._context.options.address
        if giving is not None:
            return [donor_operation(giving, self.donor.migration, address)]
        return [] if receiving is None else [recipient_operation(receiving, address)]
