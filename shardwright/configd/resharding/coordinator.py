"""The coordinator of one resharding operation, from its document to its end.

It does the work of the persisted state, then enters the next state. The next primary of the config servers continues
from there, and every step can be repeated. The decision is the transaction that gives the collection its new key.
Before it everything can be undone; after it everything will be done.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.configd.resharding.participants import Participants
from shardwright.configd.resharding.planned_chunks import plan
from shardwright.configd.resharding.store import Ending, ReshardingStore
from shardwright.configd.term.running_reshardings import ABORTED, ReshardingControl
from shardwright.configd.term.term import END, Term
from shardwright.daemon.backoff import Backoff
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.resharding.operation_document import ReshardingOperation, shown_operation
from shardwright.sharding.resharding.states import DECIDED, CoordinatorState, RecipientState
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.resharding")

_POLL_SECONDS: Final = 0.25
"""Interval between queries of the recipients' remaining time."""

TYPE: Final = "reshardCollection"
"""The coordinator type in fail points."""


class OperationOverError(Exception):
    """End of an operation between its reading from the catalog and its continuation."""


class ReshardingCoordinator:
    """One operation in one term, under the users' control."""

    def __init__(self, term: Term, operation: ReshardingOperation, control: ReshardingControl) -> None:
        self.operation = operation
        self._term = term
        self._control = control
        self._statistics = term.reshardings.statistics
        self._store = ReshardingStore(term.catalog)

    async def run(self) -> None:
        """Run the operation to its end.

        Raises:
            CommandError: the reason for which it was aborted.
            OperationOverError: it had ended since it was read from the catalog.
        """
        await self._until_done(self._read)
        self._control.shown = self._shown
        await self._until_done(self._decide)
        self._control.is_decided = True
        await self._until_done(self._complete)
        error = self.operation.abort_error
        is_canceled = error is not None and error.code == ErrorCode.ReshardCollectionAborted
        self._statistics.end(is_success=error is None, is_canceled=is_canceled)
        if error is not None:
            raise error

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until it succeeds; the end of the term cancels it."""
        backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
        while True:
            try:
                await work()
            except (CommandError, BackendError) as error:
                logger.warning("Retrying a step of resharding", **self._described, error=str(error))
            else:
                return
            await backoff.pause()

    async def _read(self) -> None:
        """Read the present state, because the caller may have read an earlier one before another run ended."""
        operation = await self._store.find(self.operation.id)
        if operation is None:
            raise OperationOverError
        self.operation = operation

    async def _decide(self) -> None:
        """Reach a decision, and persist it."""
        if self.operation.state in DECIDED:
            return
        if not self._control.is_decided and (error := await self._try_to_prepare()) is not None:
            await self._enter_aborting(error)
            return
        try:
            committed = await self._store.commit(self.operation)
        except CommandError as error:
            if error.code != ErrorCode.BSONObjectTooLarge:
                raise
            self._control.is_decided = False  # a transaction that is too large has certainly not been executed
            await self._enter_aborting(error)
            return
        await self._enter(committed)

    async def _try_to_prepare(self) -> CommandError | None:
        """Run all steps before the decision; returns the error for which the operation has to be aborted."""
        with self._control.before_decision():
            try:
                await self._prepare_to_commit()
            except CommandError as error:
                if has_category(error.code, Category.RETRYABLE):
                    raise
                return error
            # From here on the outcome of a failed transaction is unknown, so it can only be repeated.
            self._control.is_decided = True
            return None
        return CommandError(ErrorCode.ReshardCollectionAborted, ABORTED)

    async def _prepare_to_commit(self) -> None:
        """Run all steps before the decision."""
        steps = {
            CoordinatorState.INITIALIZING: self._plan_chunks,
            CoordinatorState.PREPARING_TO_DONATE: self._start_donors,
            CoordinatorState.CLONING: self._clone,
            CoordinatorState.APPLYING: self._catch_up,
        }
        while (step := steps.get(self.operation.state)) is not None:
            await self._hang_at(self.operation.state)
            await self._enter(await step())
        await self._hang_at(self.operation.state)
        await self._block_writes()

    async def _plan_chunks(self) -> ReshardingOperation:
        await self._participants.refresh(self.operation.participation.donors)
        planned = await plan(self._term, self.operation)
        await self._store.write_chunks(self.operation, planned)
        counts = Counter(each.shard for each in planned).values()
        self._statistics.chunk_imbalance = max(counts) - min(counts)
        document = await self._term.catalog.find_by_id("databases", self.operation.namespace.db)
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"Database {self.operation.namespace.db} does not exist")
        # The primary shard always has the collection, even without chunks.
        recipients = {each.shard for each in planned} | {DatabaseEntry.from_document(document).primary}
        return await self._store.prepare(self.operation, sorted(recipients))

    async def _start_donors(self) -> ReshardingOperation:
        replies = await self._participants.start_donors()
        return await self._store.enter(
            self.operation,
            CoordinatorState.CLONING,
            approximate_bytes=sum(int(each["bytesToClone"]) for each in replies.values()),
            approximate_documents=sum(int(each["documentsToClone"]) for each in replies.values()),
        )

    async def _clone(self) -> ReshardingOperation:
        operation, shares = self.operation, len(self.operation.participation.recipients)
        await self._participants.receive_until(
            RecipientState.APPLYING,
            approxBytesToCopy=Int64(operation.approximate_bytes // shares),
            approxDocumentsToCopy=Int64(operation.approximate_documents // shares),
        )
        return await self._store.enter(self.operation, CoordinatorState.APPLYING)

    async def _catch_up(self) -> ReshardingOperation:
        """Wait until the recipients' remaining time is below the threshold, or ``commitReshardCollection`` arrives."""
        enough = await self._parameter("remainingReshardingOperationTimeThresholdMillis")
        while not self._control.commit_requested.is_set():
            remaining = await self._participants.remaining_millis()
            if remaining is not None:
                self._statistics.remaining_millis = min(remaining), max(remaining)
                if max(remaining) < enough:
                    break
            with trio.move_on_after(_POLL_SECONDS):
                await self._control.commit_requested.wait()
        return await self._store.enter(self.operation, CoordinatorState.BLOCKING_WRITES)

    async def _block_writes(self) -> None:
        """Block writes, wait until the recipients have everything, then block reads.

        Raises ReshardingCriticalSectionTimeout after too long.
        """
        seconds = await self._parameter("reshardingCriticalSectionTimeoutMillis") / 1000
        with trio.move_on_after(seconds) as patience:
            replies = await self._participants.block_writes()
            times = [{"shardId": shard, "time": reply["lastWriteTime"]} for shard, reply in sorted(replies.items())]
            await self._participants.receive_until(RecipientState.STRICT_CONSISTENCY, lastWrites=times)
            await self._participants.hold()
        if patience.cancelled_caught:
            raise CommandError(
                ErrorCode.ReshardingCriticalSectionTimeout,
                "Resharding critical section timed out.",
            )

    async def _enter_aborting(self, error: CommandError) -> None:
        reason = {"code": error.code, "codeName": error.code_name, "errmsg": error.message}
        logger.info("Aborting a resharding operation", **self._described, error=str(error))
        await self._enter(await self._store.enter(self.operation, CoordinatorState.ABORTING, abort_reason=reason))

    async def _complete(self) -> None:
        """Carry out the decision."""
        await self._hang_at(self.operation.state)
        if self.operation.state is CoordinatorState.COMMITTING:
            await self._participants.commit()
            await self._participants.drop_elsewhere()
            await self._store.delete_chunks(self.operation, of_source=True)
            await self._store.note_ending(self.operation.id, Ending.MADE)
        else:
            code = self.operation.abort_reason.get("code")
            await self._participants.abort(user_canceled=code == ErrorCode.ReshardCollectionAborted)
            await self._store.delete_chunks(self.operation)
            await self._store.note_ending(self.operation.id, Ending.ABORTED)
        await self._hang_at(END)
        await self._store.finish(self.operation)
        await self._log_transition("done", str(self.operation.state))

    async def _hang_at(self, place: str) -> None:
        await self._term.hang_at(TYPE, place)

    def _shown(self) -> dict[str, Any]:
        operation = self.operation
        seconds = trio.current_time() - self._control.began
        details = {"coordinatorState": str(operation.state)}
        return shown_operation("Coordinator", operation.participation, seconds, details)

    @property
    def _participants(self) -> Participants:
        return Participants(self._term, self.operation.participation)

    async def _parameter(self, name: str) -> int:
        reply = await self._term.catalog.mongod.command("admin", {"getParameter": 1, name: 1})
        return int(reply[name])

    async def _enter(self, operation: ReshardingOperation) -> None:
        self.operation, former = operation, self.operation
        await self._log_transition(str(operation.state), str(former.state))

    async def _log_transition(self, state: str, former: str) -> None:
        told = self.operation.participation
        details = {
            "newState": state,
            "oldState": former,
            "namespace": str(told.namespace),
            "collectionUUID": Binary.from_uuid(told.source_uuid),
            "reshardingUUID": Binary.from_uuid(told.id),
        }
        logger.info("Resharding has entered a state", **self._described)
        await self._term.changelog.log_changes("resharding.coordinator.transition", str(told.namespace), [details])

    @property
    def _described(self) -> dict[str, str]:
        operation = self.operation
        return {"namespace": str(operation.namespace), "resharding": str(operation.id), "state": str(operation.state)}
