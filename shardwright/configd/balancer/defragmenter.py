"""The defragmentation of collections from phase to phase, each in its own task.

The phase is recorded in the collection's entry, and the size of each measured chunk in its document. So the next
primary continues in the same phase. All steps may be repeated. Each first reads the entry and the balancer's settings.
It waits while the balancer is off, and the defragmentation ends if it was turned off.

The steps on chunks are merge, measure and move. They raise the CommandError of the shard or the catalog, for instance
because the chunks have changed. It is HostUnreachable or FailedToSatisfyReadPreference if the shard cannot be reached.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.configd.balancer.balancer import BalancerMetrics, shown
from shardwright.configd.balancer.cluster_view import Configuration
from shardwright.configd.balancer.commands_scheduler import request_move
from shardwright.configd.balancer.defragmentation_state import (
    SIZE_FIELD,
    PausedError,
    ReplacedError,
    Situation,
    TurnedOffError,
    chunks_in_order,
    chunks_of,
    decide_about_small,
    forget,
    neighbours_of,
    next_small_chunk,
    set_phase,
    step,
    wait_situation,
)
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import Move, Rule, Skipped
from shardwright.sharding.balancing.defragmentation import (
    LARGE_BYTES,
    UNKNOWN_SHARD,
    MeasuredChunk,
    Phase,
    Union,
    measurement_of,
    merge_of,
    merged_size,
    move_of,
    runs,
    stays,
)
from shardwright.sharding.catalog.documents import CollectionEntry, ShardEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import raw_document

logger = get_logger("configd.balancer")

PAUSE_SECONDS: Final = 10.0
"""Pause after an error."""

_MERGED_MAX: Final = 1000
"""Maximum length of a run in one merge; the last phase merges the pieces of longer runs."""

_THROTTLING: Final = "chunkDefragmentationThrottlingMS"


async def merge(
    term: Term, shard: ShardEntry, entry: CollectionEntry, parts: Sequence[MeasuredChunk], threshold: int
) -> MeasuredChunk:
    """Merge adjacent chunks of one shard, and record the size of the whole if it is known."""
    whole = ChunkRange.of(entry.key, parts[0].range.min, parts[-1].range.max)
    request = {
        "mergeChunks": str(entry.namespace),
        "bounds": [raw_document(whole.min), raw_document(whole.max)],
        "epoch": entry.epoch,
        "timestamp": entry.timestamp,
    }
    await term.shards.command(shard, "admin", request)
    merged = MeasuredChunk(whole, shard.id, merged_size(parts, threshold))
    if merged.size is not None:
        await record_size(term, entry, merged, merged.size)
    return merged


async def measure(term: Term, shard: ShardEntry, entry: CollectionEntry, chunk: MeasuredChunk, threshold: int) -> None:
    """Measure a chunk on its shard, up to the size that shows that it is not small."""
    request: dict[str, Any] = {
        "dataSize": str(entry.namespace),
        "keyPattern": raw_document(entry.key.document),
        **chunk.range.to_document(),
        "estimate": True,
        "maxSize": Int64(threshold),
    }
    reply = await term.shards.command(shard, entry.namespace.db, request)
    size = int(reply["size"])
    is_small = not reply.get("maxReached") and size < threshold
    await record_size(term, entry, chunk, size if is_small else LARGE_BYTES)


async def record_size(term: Term, entry: CollectionEntry, chunk: MeasuredChunk, size: int) -> None:
    """Record the size of a chunk if it is unchanged and on the same shard. Errors as for transactions."""

    async def work(transaction: Transaction) -> None:
        query = {**chunks_of(entry), **chunk.range.to_document(), "shard": chunk.shard}
        document = await transaction.find_one("chunks", query)
        if document is not None:
            transaction.put("chunks", [{**document, SIZE_FIELD: Int64(size)}])

    await term.catalog.transaction(work)


async def move(
    term: Term,
    donor: ShardEntry,
    recipient: ShardEntry,
    entry: CollectionEntry,
    chunk: MeasuredChunk,
    configuration: Configuration,
    chunk_bytes_max: int,
) -> None:
    """Move a whole small chunk to another shard."""
    request = {
        "_shardsvrMoveRange": str(entry.namespace),
        "toShard": recipient.id,
        **chunk.range.to_document(),
        "epoch": entry.epoch,
        "fromShard": donor.id,
        "maxChunkSizeBytes": Int64(chunk_bytes_max),
        "forceJumbo": 0,
        **configuration.move_options(),
    }
    await request_move(term, donor, request)


class Defragmentation:
    """The defragmentation of one collection; ``on_step`` is called after each step with its name."""

    def __init__(self, term: Term, namespace: str, on_step: Callable[[str], None]) -> None:
        self._term = term
        self._namespace = namespace
        self._on_step = on_step
        self._begun_with: Situation | None = None

    async def run(self) -> None:
        """Run the remaining phases; after an error, repeat the phase after a pause."""
        while True:
            try:
                await self._run_phases()
            except PausedError:
                logger.info("The defragmentation of a collection waits for the balancer", namespace=self._namespace)
            except ReplacedError:
                logger.info("Another collection is to be defragmented now", namespace=self._namespace)
            except TurnedOffError:
                logger.info("The defragmentation of a collection was turned off", namespace=self._namespace)
                return
            except (CommandError, BackendError) as error:
                logger.warning(
                    "The defragmentation of a collection pauses", namespace=self._namespace, error=str(error)
                )
                await trio.sleep(PAUSE_SECONDS)
            except Exception:
                # It must not end the daemon, because the defragmentation would end the next primary's daemon too.
                logger.exception("The defragmentation of a collection failed unexpectedly", namespace=self._namespace)
                await trio.sleep(PAUSE_SECONDS)
            else:
                logger.info("A collection is defragmented", namespace=self._namespace)
                return

    async def _run_phases(self) -> None:
        steps: dict[Phase, Callable[[], Awaitable[None]]] = {
            Phase.MERGE_AND_MEASURE: self._merge_and_measure,
            Phase.MOVE_AND_MERGE: self._move_and_merge,
            Phase.MERGE: self._merge,
        }
        self._begun_with = None
        self._begun_with = situation = await self._next_step()
        recorded = situation.entry.defragmentation_phase
        phase: Phase | None = Phase(recorded) if recorded in {each.value for each in Phase} else Phase.MERGE_AND_MEASURE
        while phase is not None:
            logger.info("A phase of defragmentation begins", namespace=self._namespace, phase=phase.value)
            await set_phase(self._term, situation.entry, phase)
            await steps[phase]()
            phase = phase.next
        await forget(self._term, (await self._next_step()).entry)

    # Phases

    async def _merge_and_measure(self) -> None:
        async for run in self._runs():
            if len(run) == 1 and run[0].size is not None:
                continue
            situation = await self._next_step()
            shard = situation.shards.get(run[0].shard)
            if shard is None:
                _leave_alone(
                    stays(situation.entry.namespace, run[0], situation.zones, Rule.MERGE_AND_MEASURE, UNKNOWN_SHARD)
                )
                continue
            whole = run[0]
            if len(run) > 1:
                whole = await self._merge_run(situation, shard, run, Rule.MERGE_AND_MEASURE)
                await self._throttle()
            if whole.size is None:
                await self._measure(situation, shard, whole)

    async def _move_and_merge(self) -> None:
        """Process all small chunks in order, until a pass changes nothing."""
        while await self._pass_over_small_chunks():
            # A move changes the version of another chunk of the donor, which thereby loses its recorded size.
            await self._merge_and_measure()

    async def _pass_over_small_chunks(self) -> bool:
        """Process each small chunk once; returns whether anything was done."""
        is_changed, above = False, None
        while True:
            situation = await self._next_step()
            catalog, entry = self._term.catalog, situation.entry
            chunk = await next_small_chunk(catalog, entry, situation.threshold, above)
            if chunk is None:
                return is_changed
            above = chunk.range.min
            neighbours = await neighbours_of(catalog, entry, chunk)
            chosen = decide_about_small(situation, chunk, neighbours)
            if isinstance(chosen, Skipped):
                _leave_alone(chosen)
            elif await self._unite(situation, chosen):
                is_changed = True
                await self._throttle()

    async def _merge(self) -> None:
        async for run in self._runs():
            if len(run) > 1:
                situation = await self._next_step()
                shard = situation.shards.get(run[0].shard)
                if shard is None:
                    _leave_alone(stays(situation.entry.namespace, run[0], situation.zones, Rule.MERGE, UNKNOWN_SHARD))
                else:
                    await self._merge_run(situation, shard, run, Rule.MERGE)
                    await self._throttle()

    # Steps

    async def _next_step(self) -> Situation:
        """Return the situation for the next step; errors as `wait_situation`.

        Raises ReplacedError if the collection was dropped and created again, or resharded, since the first step.
        """
        situation = await wait_situation(self._term, self._namespace)
        if self._begun_with is not None and situation.entry.uuid != self._begun_with.entry.uuid:
            raise ReplacedError
        return situation

    async def _runs(self) -> AsyncIterator[list[MeasuredChunk]]:
        """Yield the runs of chunks that can be merged, in order; a long run comes in several pieces."""
        situation = await self._next_step()
        rest: list[MeasuredChunk] = []
        async for page in chunks_in_order(self._term.catalog, situation.entry):
            *complete, rest = runs([*rest, *page], situation.zones)
            for run in complete:
                yield run
            if len(rest) >= _MERGED_MAX:
                yield rest
                rest = []
        if rest:
            yield rest

    async def _merge_run(
        self, situation: Situation, shard: ShardEntry, run: list[MeasuredChunk], rule: Rule
    ) -> MeasuredChunk:
        entry, threshold = situation.entry, situation.threshold
        decided = merge_of(entry.namespace, run, shard.id, situation.zones, threshold, rule)
        async with step(self._term):
            logger.info("Merging chunks", **shown(decided.to_document()))
            merged = await merge(self._term, shard, entry, run, threshold)
        self._on_step("merged")
        return merged

    async def _measure(self, situation: Situation, shard: ShardEntry, chunk: MeasuredChunk) -> None:
        entry, threshold = situation.entry, situation.threshold
        async with step(self._term):
            decided = measurement_of(entry.namespace, chunk, situation.zones, threshold)
            logger.debug("Measuring a chunk", **shown(decided.to_document()))
            await measure(self._term, shard, entry, chunk, threshold)
        self._on_step("measured")

    async def _unite(self, situation: Situation, union: Union) -> bool:
        """Move a small chunk to its neighbour and merge them; returns whether that was done.

        A chunk that cannot be moved now stays as it is in this pass.
        """
        recipient = situation.shards[union.recipient]
        if union.is_move:
            decided = move_of(situation.entry.namespace, union, situation.zones, situation.threshold)
            try:
                await self._move(situation, union.chunk, recipient, decided)
            except CommandError as error:
                is_busy = error.code == ErrorCode.ConflictingOperationInProgress
                (logger.info if is_busy else logger.warning)(
                    "A small chunk could not be moved to its neighbour",
                    error=str(error),
                    **shown(decided.to_document()),
                )
                return False
        await self._merge_run(situation, recipient, list(union.parts), Rule.MOVE_AND_MERGE)
        return True

    async def _move(self, situation: Situation, chunk: MeasuredChunk, recipient: ShardEntry, decided: Move) -> None:
        donor, busy = situation.shards[chunk.shard], self._term.busy_shards
        while True:
            if donor.id in busy or recipient.id in busy:
                reason = "one of its shards takes part in another move"
                _leave_alone(stays(decided.namespace, chunk, situation.zones, decided.rule, reason))
            await busy.wait_free(donor.id, recipient.id)
            with busy.taking(donor.id, recipient.id) as is_free:
                if is_free:
                    async with step(self._term):
                        await self._move_now(situation, donor, recipient, chunk, decided)
                    return

    async def _move_now(
        self, situation: Situation, donor: ShardEntry, recipient: ShardEntry, chunk: MeasuredChunk, decided: Move
    ) -> None:
        logger.info("Moving a small chunk to its neighbour", **shown(decided.to_document()))
        entry, configuration = situation.entry, situation.configuration
        await move(self._term, donor, recipient, entry, chunk, configuration, situation.chunk_bytes_max)
        self._on_step("moved")

    async def _throttle(self) -> None:
        """Pause between merges and moves."""
        reply = await self._term.catalog.mongod.command("admin", {"getParameter": 1, _THROTTLING: 1})
        await trio.sleep(int(reply[_THROTTLING]) / 1000)


def _leave_alone(skipped: Skipped) -> None:
    logger.debug("Left alone", **shown(skipped.to_document()))


LOOK_SECONDS: Final = 10.0
"""Interval between searches for collections; a user's change of a collection's settings also starts one."""


class Defragmenter:
    """Starter of defragmentations in one term, including those that former primaries began."""

    def __init__(self, term: Term, metrics: BalancerMetrics) -> None:
        self._term = term
        self._metrics = metrics
        self._running: set[str] = set()

    async def run(self) -> None:
        """Start and resume defragmentations until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for namespace in await self._wanted():
                    if namespace not in self._running:
                        self._running.add(namespace)
                        nursery.start_soon(self._defragment, namespace)
                await self._term.balancer_rounds.wait_changed(LOOK_SECONDS)

    async def _wanted(self) -> list[str]:
        try:
            found = await self._term.catalog.find("collections", {"defragmentCollection": True})
        except (CommandError, BackendError) as error:
            logger.warning("Could not look for collections to defragment", error=str(error))
            return []
        return [str(document["_id"]) for document in found]

    async def _defragment(self, namespace: str) -> None:
        try:
            await Defragmentation(self._term, namespace, partial(self._metrics.defragmentation.add)).run()
        finally:
            self._running.discard(namespace)
