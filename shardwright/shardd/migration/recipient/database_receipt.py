"""Receiving a database: its collections are cloned one after the other, then changes applied until the donor commits.

The donor sends the collections in rounds, because clients may create further ones meanwhile. This state is not
persisted. If the term of this shard's primary ends, the donor drops the copies, and begins again or aborts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import trio
from bson.int64 import Int64

from shardwright.daemon.current_op import new_opid
from shardwright.shardd.context.fail_point_names import MOVE_PRIMARY_RECIPIENT_HANG_BEFORE_CLONE
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.shardd.local_mongod.moved_contents import drop_exactly
from shardwright.shardd.migration.moved_database import MovedCollection, ReceiveDatabase, copy_uuid, put_views
from shardwright.shardd.migration.recipient.clone import run_together
from shardwright.shardd.migration.recipient.collection_receipt import CollectionReceipt, DatabaseLink
from shardwright.shardd.migration.recipient.donor_link import RecipientPeers
from shardwright.shardd.migration.recipient.transfer import CatchUpEnd
from shardwright.shardd.session_history.migrated_history import HistoryPull
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.database")


WAIT_SECONDS_MAX: Final = 1.0
"""Limit of the wait in `DatabaseReceipt.wait_steady`."""

_STEADY_POLL_SECONDS: Final = 0.02


class ReceiptState(StrEnum):
    """The states of a recipient, in order."""

    CLONE = "clone"
    CATCHUP = "catchup"
    STEADY = "steady"
    FINISHED = "finished"
    FAIL = "fail"


_UNTIL_STEADY: Final = frozenset({ReceiptState.CLONE, ReceiptState.CATCHUP})


@dataclass(frozen=True, slots=True)
class Round:
    """One round of copying, as the donor requests it.

    Attributes:
        number: the number of the round, from 1.
        collections: the collections to clone in addition to earlier rounds.
        gone: names of collections of earlier rounds that have been dropped or altered, with their UUIDs on the donor.
        views: all views, as documents of ``system.views``, raw.
    """

    number: int
    collections: Sequence[MovedCollection]
    gone: Sequence[tuple[Namespace, UUID]]
    views: Sequence[bytes]


class DatabaseReceipt:
    """One attempt to receive a database.

    Attributes:
        cloned: number of documents cloned.
        changed: number of changed documents applied.
        error: the error of a failed attempt.
    """

    def __init__(self, context: ShardContext, peers: RecipientPeers, request: ReceiveDatabase) -> None:
        self.request = request
        self.opid = new_opid()
        self.began = datetime.now(UTC)
        self.state = ReceiptState.CLONE
        self.cloned = self.cloned_bytes = self.changed = 0
        self.error: CommandError | None = None
        self._context = context
        self._peers = peers
        self._link = DatabaseLink(context, request)
        self._history = HistoryPull(peers.history_table, self._link.history.command, request.session_id)
        self._receipts: dict[UUID, CollectionReceipt] = {}
        self._round: Round | None = None
        self._is_finish_requested = False
        self._progress = trio.Event()
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def begin_round(self, wanted: Round) -> None:
        """Begin a round: clone its collections and create its views. A repeated request does nothing."""
        if self._round is None or wanted.number > self._round.number:
            self._round = wanted
            self._enter(ReceiptState.CLONE)
            self._wake.set()

    async def run(self) -> None:
        """Receive the database until it is complete or the attempt is ended."""
        try:
            with self._scope:
                await run_together(self._receive, meanwhile=self._history.follow)
                self._enter(ReceiptState.FINISHED)
        except (CommandError, BackendError, RemoteProtocolError) as failure:
            self.error = as_command_error(failure)
            logger.warning("Could not receive a database", db=self.request.db, error=str(failure))
        finally:
            self._link.close()
            if self.state is not ReceiptState.FINISHED:
                self.error = self.error or _term_over(self.request.db)
                self._enter(ReceiptState.FAIL)
            self._ended.set()

    async def end(self) -> None:
        """End the attempt; nothing is written any more once this has returned."""
        if self.state is not ReceiptState.FINISHED:
            self.error = self.error or CommandError(ErrorCode.Interrupted, "the move of the database has ended")
        self._scope.cancel()
        await self._ended.wait()
        await self._end_cut_off_transactions()

    @property
    def is_over(self) -> bool:
        """Whether the attempt has ended, with or without success."""
        return self._ended.is_set()

    async def wait_steady(self) -> None:
        """Return when few changes of the round are left, or the attempt has failed, at most after a second."""
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while self.state in _UNTIL_STEADY:
                await self._next_progress()

    async def finish(self, number: int) -> None:
        """Apply the donor's queued changes while it blocks writes, and return when a majority has them.

        Raises CommandError if the attempt failed or the round is not complete.
        """
        if self.state is ReceiptState.STEADY and self._round is not None and self._round.number == number:
            self._is_finish_requested = True
            self._wake.set()
            while self.state is ReceiptState.STEADY:
                await self._next_progress()
        if self.state is not ReceiptState.FINISHED:
            raise self.error or CommandError(ErrorCode.CommandFailed, f"the copy of {self.request.db} is not steady")

    def report(self) -> dict[str, Any]:
        """Return the progress, in the format for the donor, or raise the error of a failed attempt."""
        if self.error is not None:
            raise self.error
        return {
            "state": str(self.state),
            "round": 0 if self._round is None else self._round.number,
            "cloned": Int64(self.cloned),
            "clonedBytes": Int64(self.cloned_bytes),
            "changed": Int64(self.changed),
        }

    async def _receive(self) -> None:
        while not self._is_finish_requested:
            self._wake = trio.Event()
            if self.state is ReceiptState.CLONE and self._round is not None:
                await self._clone(self._round)
            await self._catch_up()
            await self._keep_up()
        await run_together(self._drain, self._history.drain)
        self._context.database(self.request.db).note_arrival()
        await self._context.wait_majority()

    async def _clone(self, wanted: Round) -> None:
        mongod = self._context.mongod
        await self._context.fail_points.hang_while(MOVE_PRIMARY_RECIPIENT_HANG_BEFORE_CLONE)
        for namespace, uuid in wanted.gone:
            self._receipts.pop(uuid, None)
            await drop_exactly(mongod, [(namespace, copy_uuid(self.request.move_id, uuid))])
        for collection in wanted.collections:
            receipt = CollectionReceipt(self._context, self._peers.sessions, self.request, collection)
            try:
                await receipt.clone(self._link, self, self._peers.client_load)
            except CommandError as error:
                if error.code != ErrorCode.NamespaceNotFound:
                    raise
                # The donor will notice that too, and drop the incomplete copy.
                logger.info("A collection disappeared while it was cloned", namespace=str(collection.namespace))
                await self._end_cut_off_transactions()
            else:
                self._receipts[collection.uuid] = receipt
        await put_views(mongod, self.request.db, wanted.views)
        self._context.views.forget()
        if self._round is wanted:
            self._enter(ReceiptState.CATCHUP)

    async def _catch_up(self) -> None:
        """Apply changes until few are left, and get most of the session history."""
        end = CatchUpEnd(self.cloned)
        while self.state is ReceiptState.CATCHUP and not end.is_reached(await self._apply_next()):
            pass
        await run_together(self._context.wait_majority, self._history.drain)
        if self.state is ReceiptState.CATCHUP:
            self._enter(ReceiptState.STEADY)

    async def _keep_up(self) -> None:
        """Apply changes until the next request of the donor."""
        while not self._wake.is_set():
            if not await self._apply_next():
                with trio.move_on_after(_STEADY_POLL_SECONDS):
                    await self._wake.wait()

    async def _drain(self) -> None:
        while await self._apply_next():
            pass
        for receipt in self._receipts.values():
            await receipt.writer.complete()

    async def _apply_next(self) -> int:
        """Apply the next batch of changes; return its number of documents, or 1 if it is empty but more are queued."""
        batch, queued = await self._link.changes()
        count = 0
        for changes in batch:
            receipt = self._receipts.get(changes.uuid)
            if receipt is not None:
                await receipt.writer.apply(changes)
                count += len(changes.deleted) + len(changes.reload)
        self.changed += count
        return count or queued

    async def _end_cut_off_transactions(self) -> None:
        """End the transactions of cancelled writers, which may still be open in mongod, by taking a session."""
        async with self._peers.sessions.session():
            pass

    def _enter(self, state: ReceiptState) -> None:
        self.state = state
        self._announce()

    def _announce(self) -> None:
        progress, self._progress = self._progress, trio.Event()
        progress.set()

    async def _next_progress(self) -> None:
        await self._progress.wait()


def _term_over(db: str) -> CommandError:
    """Return the error of an attempt that ends with this shard's term; the donor begins another one."""
    return CommandError(ErrorCode.InterruptedDueToReplStateChange, f"the recipient of {db} has stopped being primary")
