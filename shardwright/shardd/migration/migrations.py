"""One shard daemon's migrations, in either direction."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.active_migrations import ActiveMigrations
from shardwright.shardd.migration.database.database_moves import DatabaseMoves
from shardwright.shardd.migration.donor.donor_service import DonorService
from shardwright.shardd.migration.donor.migration import donor_operation
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.shardd.migration.recipient.migration import recipient_operation
from shardwright.shardd.migration.recipient.service import RecipientService
from shardwright.shardd.migration.throttling import ClientLoad, MigrationParameters
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.request import MoveRangeRequest


class Migrations:
    """Migrations from this shard and to it.

    Args:
        history_table: stores the session history of received ranges.
        wait_for_commits: waits for cross-shard commits in the session history of donated ranges.

    Attributes:
        client_load: the load of client operations on this daemon.
    """

    def __init__(
        self,
        context: ShardContext,
        range_deletions: RangeDeletions,
        sessions: ReservedSessions,
        history_table: HistoryTable,
        wait_for_commits: Callable[[], Awaitable[None]],
    ) -> None:
        self.parameters = MigrationParameters()
        self.client_load = ClientLoad(context.metrics.operations)
        self._context = context
        self._range_deletions = range_deletions
        self._sessions = sessions
        self._active = ActiveMigrations()
        self.donor = DonorService(context, range_deletions, self._active, self.parameters, wait_for_commits)
        peers = RecipientPeers(range_deletions, sessions, history_table, self.client_load)
        self.recipient = RecipientService(context, peers, self._active)
        self.databases = DatabaseMoves(context, peers)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Recover the unfinished migrations of earlier terms; their critical sections are in effect when this returns.

        This must not wait for another server, nor for anything that operations wait for.
        """
        unfinished = await self.donor.load()
        await self.recipient.begin_term(nursery)
        await self.donor.recover(unfinished, nursery)
        self.databases.begin_term(nursery)

    def end_term(self) -> None:
        """Drop the migrations, which were cancelled with their nursery; the next primary resumes them."""
        self.donor.end_term()
        self.recipient.end_term()
        self.databases.end_term()

    async def move_range(self, request: "MoveRangeRequest") -> None:
        """Move a range to another shard, or wait for the end of the same migration if it is active.

        A new primary first recovers the active migration. Raises NotWritablePrimary, ConflictingOperationInProgress if
        another migration is active, or the error of the migration.
        """
        await self._context.recovery_gate.wait_open()
        active = self.donor.start(request)
        await active.wait_result()
        if request.wait_for_delete and active.migration_id is not None:
            await self._range_deletions.known.wait_deleted(active.migration_id)

    async def abort_all(self, namespace: str, reason: str) -> None:
        """Abort a collection's migration from this shard, and wait for its end.

        A migration that is already committing is not aborted, only waited for.
        """
        active = self._active.donor
        if active is not None and active.key.namespace == namespace:
            active.abort(CommandError(ErrorCode.ConflictingOperationInProgress, reason))
            await active.ended.wait()

    async def end_all(self, namespace: str, reason: str) -> None:
        """End a collection's migration in either direction; it writes nothing more once this has returned.

        Raises ConflictingOperationInProgress if the received range awaits the donor's decision.
        """
        await self.abort_all(namespace, reason)
        await self.recipient.end(namespace)
        # One of its transactions may have been interrupted and still be open in mongod; a new session ends it.
        async with self._sessions.session():
            pass

    def kill(self, opid: int) -> bool:
        """Abort the migration with this ``opid`` in `progress`; return whether there is one."""
        giving, receiving = self._active.donor, self.recipient.active
        if giving is not None and giving.opid == opid:
            giving.abort(CommandError(ErrorCode.Interrupted, "operation was interrupted"))
            return True
        if receiving is not None and receiving.opid == opid:
            receiving.kill()
            return True
        return False

    def is_shown_as(self, opid: object) -> bool:
        """Whether `progress` shows a migration under ``opid``."""
        return any(active is not None and active.opid == opid for active in (self._active.donor, self.recipient.active))

    def progress(self) -> list[dict[str, Any]]:
        """Return the ``currentOp`` entries of the active migration, if there is one, and of moving databases."""
        giving, receiving = self._active.donor, self.recipient.active
        address = self._context.options.address
        databases = self.databases.progress()
        if giving is not None:
            return [donor_operation(giving, self.donor.migration, address), *databases]
        return databases if receiving is None else [recipient_operation(receiving, address), *databases]
