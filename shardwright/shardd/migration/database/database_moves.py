"""Moves of databases from this shard and to it."""

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from shardwright.shardd.context.current_op_entry import operation_entry
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.database.database_receipt import DatabaseReceipt, Round
from shardwright.shardd.migration.database.database_source import DatabaseSource
from shardwright.shardd.migration.database.receive_database import ReceiveDatabase
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError


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
