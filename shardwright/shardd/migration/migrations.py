"""One shard daemon's migrations, in either direction: of ranges (`Migrations`), and of databases (`DatabaseMoves`)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from shardwright.daemon.current_op import operation_entry
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.active_migrations import ActiveMigrations, ClientLoad, MigrationParameters
from shardwright.shardd.migration.donor.database_source import DatabaseSource
from shardwright.shardd.migration.donor.donor_service import DonorService
from shardwright.shardd.migration.donor.migration import donor_operation
from shardwright.shardd.migration.moved_database import ReceiveDatabase
from shardwright.shardd.migration.recipient.database_receipt import DatabaseReceipt, Round
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.shardd.migration.recipient.recipient_service import RecipientService, recipient_operation
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.move_range import MoveRangeRequest


class DatabaseMoves:
    """One shard daemon's moves of databases."""

    def __init__(self, context: ShardContext, peers: RecipientPeers) -> None:
        self._context = context
        self._peers = peers
        self._sources: dict[str, DatabaseSource] = {}
        self._receipts: dict[str, DatabaseReceipt] = {}
        self._nursery: trio.Nursery | None = None

    def begin_term(self, nursery: trio.Nursery) -> None:
        """Accept requests to receive databases."""
        self._nursery = nursery

    def end_term(self) -> None:
        """Drop the attempts to receive databases, which were cancelled with their nursery."""
        self._nursery = None
        self._receipts.clear()

    # Donor

    @asynccontextmanager
    async def serving(self, db: str, sharded: Container[str], move_id: UUID) -> AsyncIterator[DatabaseSource]:
        """Serve a database to the recipient in the block.

        Args:
            sharded: the namespaces of its sharded collections.
        """
        source = DatabaseSource(self._context.mongod, db, sharded, move_id)
        await source.start()
        failure: CommandError | BackendError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run, nursery)
            self._sources[source.session_id] = source
            try:
                yield source
            except (CommandError, BackendError) as error:
                failure = error  # raised outside, as a nursery would wrap it
            finally:
                del self._sources[source.session_id]
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def source(self, session_id: str) -> DatabaseSource | None:
        """Return the source of a database with a session id, or None."""
        return self._sources.get(session_id)

    # Recipient

    def receive(self, request: ReceiveDatabase, wanted: Round) -> None:
        """Begin a round of an attempt to receive a database. The request may be repeated.

        Raises:
            CommandError: NotWritablePrimary; ConflictingOperationInProgress, another attempt is in progress;
                NotYetInitialized, earlier rounds are unknown, for example after a failover.
        """
        if self._nursery is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        receipt = self._receipts.get(request.db)
        if receipt is not None and receipt.request.move_id != request.move_id and receipt.is_over:
            receipt = None
        if receipt is not None and receipt.request.move_id != request.move_id:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress, f"Another move of the database {request.db} is in progress"
            )
        if receipt is None:
            if wanted.number != 1:
                raise _unknown(request.db)
            receipt = self._receipts[request.db] = DatabaseReceipt(self._context, self._peers, request)
            receipt.begin_round(wanted)
            self._nursery.start_soon(receipt.run)
        else:
            receipt.begin_round(wanted)

    def receipt(self, db: str, move_id: UUID) -> DatabaseReceipt:
        """Return the attempt to receive a database, or raise NotYetInitialized, for example after a failover."""
        receipt = self._receipts.get(db)
        if receipt is None or receipt.request.move_id != move_id:
            raise _unknown(db)
        return receipt

    async def end(self, db: str, move_id: UUID) -> None:
        """End an attempt to receive a database, if it exists; nothing is written any more when this has returned."""
        receipt = self._receipts.get(db)
        if receipt is not None and receipt.request.move_id == move_id:
            await receipt.end()
            self._receipts.pop(db, None)

    # Progress

    def progress(self) -> list[dict[str, Any]]:
        """Return the ``currentOp`` entries of the databases that are being moved."""
        sources = [self._source_operation(each) for each in self._sources.values()]
        return [*sources, *(self._receipt_operation(each) for each in self._receipts.values())]

    def _source_operation(self, source: DatabaseSource) -> dict[str, Any]:
        details = {
            "ns": source.db,
            "command": {"movePrimary": source.db},
            "msg": "serving",
            "movePrimary": {
                "documentsCloned": source.documents_cloned,
                "bytesCloned": source.bytes_cloned,
                "documentsQueued": source.queued_ids,
            },
        }
        address = self._context.options.address
        return operation_entry("MovePrimaryDonor", address, source.opid, source.began, details)

    def _receipt_operation(self, receipt: DatabaseReceipt) -> dict[str, Any]:
        request = receipt.request
        details = {
            "ns": request.db,
            "command": {"movePrimary": request.db, "to": request.recipient, "fromShard": request.donor},
            "msg": str(receipt.state),
            "movePrimary": {
                "documentsCloned": receipt.cloned,
                "bytesCloned": receipt.cloned_bytes,
                "documentsChanged": receipt.changed,
            },
        }
        return operation_entry(
            "MovePrimaryRecipient", self._context.options.address, receipt.opid, receipt.began, details
        )


def _unknown(db: str) -> CommandError:
    return CommandError(ErrorCode.NotYetInitialized, f"No active move of the database {db} was found")


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

        Raises NotWritablePrimary, ConflictingOperationInProgress if another migration is active, or the error of the
        migration.
        """
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
