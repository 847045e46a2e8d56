"""The coordinator of one resharding operation, from its document to its end, and running it.

It does the work of the persisted state, then enters the next state. The next primary of the config servers continues
from there, and every step can be repeated. The decision is the transaction that gives the collection its new key.
Before it everything can be undone; after it everything will be done.

The chunks of the new key are given by the caller, or planned from zones and a sample of the documents (`plan`).
Operations run for new requests (`reshard`) and after a step-up (`resume_resharding`).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.resharding.transitions import Ending, Participants, ReshardingStore, together
from shardwright.configd.term.term import ABORTED, END, ReshardingControl, Term
from shardwright.daemon.backoff import Backoff
from shardwright.sharding.catalog.documents import DatabaseEntry, ShardEntry
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.initial_chunks import SAMPLES_PER_CHUNK, PlannedChunk, ZoneRange, plan_chunks
from shardwright.sharding.resharding_operation import ReshardingOperation, shown_operation
from shardwright.sharding.resharding_participation import DECIDED, CoordinatorState, RecipientState
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document

logger = get_logger("configd.resharding")

_SAMPLES_MAX: Final = 100_000
_SAMPLES_PER_SHARD_MAX: Final = 20_000
"""Maximum sample from one shard; a single reply has to hold it."""

_FIRST: Final = 1 << 32
"""The packed version 1|0."""

_POLL_SECONDS: Final = 0.25
"""Interval between queries of the recipients' remaining time."""

TYPE: Final = "reshardCollection"
"""The coordinator type in fail points."""


async def plan(term: Term, operation: ReshardingOperation) -> list[PlannedChunk]:
    """Plan the chunks of the new key.

    Raises:
        CommandError: 4952606, there are too few different keys; 4952607, a zone has no shard; BadValue, the given
            chunks do not cover the whole key space once; ShardKeyNotFound, a document has an array for a key.
    """
    if operation.preset_chunks is not None:
        return _preset(operation, operation.preset_chunks)
    pattern = operation.participation.key
    shards = [each for each in await term.catalog.shards() if not each.is_draining]
    count = operation.chunk_count or int(
        await term.catalog.count("chunks", {"uuid": Binary.from_uuid(operation.participation.source_uuid)})
    )
    samples = await _sample(term, operation, count * SAMPLES_PER_CHUNK) if count > 1 else []
    zones = [zone_range(pattern, zone) for zone in operation.zones or ()]
    return plan_chunks(pattern, count, samples, [each.id for each in shards], zones, _shards_of_zone(shards))


def zone_range(pattern: ShardKeyPattern, zone: Mapping[str, Any]) -> ZoneRange:
    """Read a zone of the request, with its bounds extended to full shard keys.

    Raises ShardKeyNotFound and others if the bounds are not keys.
    """
    low, high = (pattern.extend_range_bound(encode_document(zone[name])) for name in ("min", "max"))
    return ZoneRange(low, high, zone["zone"])


def _shards_of_zone(shards: Sequence[ShardEntry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for shard in shards:
        for zone in shard.tags:
            found.setdefault(zone, []).append(shard.id)
    return found


def _preset(operation: ReshardingOperation, chunks: Sequence[Mapping[str, Any]]) -> list[PlannedChunk]:
    planned = [
        PlannedChunk(encode_document(each["min"]), encode_document(each["max"]), str(each["recipientShardId"]))
        for each in chunks
    ]
    told = operation.participation
    collection = ShardedCollection(told.temporary, told.id, ObjectId(), Timestamp(1, 1), told.key)
    placements = (ChunkPlacement(each.min, each.max, each.shard, _FIRST + n, ()) for n, each in enumerate(planned))
    try:
        # Building a table fails unless the chunks cover the whole key space exactly once.
        RoutingTable.build(collection, placements)
    except CommandError as error:
        raise CommandError(ErrorCode.BadValue, f"The preset chunks are not valid: {error}") from error
    return planned


async def _sample(term: Term, operation: ReshardingOperation, count: int) -> list[bytes]:
    """Return shard keys of random documents, from each donor in proportion to its number of documents."""
    namespace, pattern = operation.namespace, operation.participation.key
    sizes: dict[str, int] = {}
    keys: list[bytes] = []
    donors = operation.participation.donors

    async def measure(donor: str) -> None:
        reply = await ask(donor, {"count": namespace.collection})
        sizes[donor] = int(reply["n"])

    async def sample(donor: str) -> None:
        share = min(_SAMPLES_MAX, count) * sizes[donor] // total + 1
        size = min(share, _SAMPLES_PER_SHARD_MAX)
        fields = {each.name.decode(): 1 for each in pattern.fields}
        if not any(each.path[0] == b"_id" for each in pattern.fields):
            fields["_id"] = 0
        pipeline = [{"$sample": {"size": size}}, {"$project": fields}]
        # The batch may hold one more than the sample, so that the cursor ends with it, unless the keys are too large.
        # An open cursor would block range deletions of the collection.
        aggregate = {"aggregate": namespace.collection, "pipeline": pipeline, "cursor": {"batchSize": size + 1}}
        cursor = (await ask(donor, aggregate))["cursor"]
        if cursor["id"]:
            await ask(donor, {"killCursors": namespace.collection, "cursors": [cursor["id"]]})
        keys.extend(pattern.extract_from_document(encode_document(each)) for each in cursor["firstBatch"])

    async def ask(donor: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return await term.shards.command(await term.catalog.shard(donor), namespace.db, command)

    await together(donors, measure)
    total = max(sum(sizes.values()), 1)
    await together(donors, sample)
    return keys


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
        # mongod continues an insert whose client is gone. Its chunks would then be inserted after the abort has deleted
        # the others, and block the removal of their shards forever.
        with self._control.uninterrupted():
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


async def reshard(term: Term, wanted: ReshardingOperation) -> None:
    """Run an operation, or wait for the end of the same one; it continues even if this is cancelled.

    Raises:
        CommandError: 5808201, another one is in progress; or the reason for the abort, also if the request was repeated
            after the abort.
        OperationOverError: the same one was in progress, and has ended by now.
    """
    async with term.locks.hold("resharding"):
        store = ReshardingStore(term.catalog)
        active = await store.active()
        if active is None or not active.is_same_request(wanted):
            ending = await store.ending_of(wanted.id)
            if ending is Ending.ABORTED:
                raise CommandError(ErrorCode.ReshardCollectionAborted, ABORTED)
            if ending is Ending.MADE:
                return  # the collection may even have another key by now
            async with term.locks.hold(f"ns:{wanted.namespace}"):
                active = await store.begin(wanted)
                term.reshardings.statistics.started += 1
    await run_operation(term, active)


async def run_operation(term: Term, operation: ReshardingOperation) -> None:
    """Run a persisted operation to its end, or wait for the end of the present run.

    Raises:
        CommandError: the reason for the abort; InterruptedDueToReplStateChange, the term is over.
        OperationOverError: it has ended since it was read.
    """

    async def work(control: ReshardingControl) -> None:
        await ReshardingCoordinator(term, operation, control).run()

    await term.reshardings.run(operation.id, work)


async def resume_resharding(term: Term) -> None:
    """Resume the operation that a former primary left unfinished, if there is one."""
    backoff = Backoff(first_seconds=0.5, seconds_max=5.0)
    while True:
        try:
            operation = await ReshardingStore(term.catalog).active()
            break
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the resharding operations", error=str(error))
        await backoff.pause()
    if operation is None:
        return
    logger.info("Resuming a resharding operation", namespace=str(operation.namespace), state=str(operation.state))
    try:
        await run_operation(term, operation)
    except (CommandError, OperationOverError) as error:
        logger.info("A resharding operation was not completed", resharding=str(operation.id), error=str(error))
