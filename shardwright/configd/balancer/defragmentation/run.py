"""The defragmentation of one collection, from phase to phase.

The phase is recorded in the collection's entry and the size of each measured chunk in its document, so that the next
primary goes on in the same phase. All steps may be repeated. Each of them begins with a look at the entry and at the
balancer's settings: it waits while the balancer is off, and the defragmentation ends if it was turned off.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import trio

from shardwright.configd.balancer.defragmentation.actions import measure, merge, move
from shardwright.configd.balancer.defragmentation.chunks import chunks_in_order, neighbours_of, next_small_chunk
from shardwright.configd.balancer.defragmentation.progress import forget, set_phase
from shardwright.configd.balancer.defragmentation.situation import (
    PausedError,
    ReplacedError,
    Situation,
    TurnedOffError,
    step,
    wait_situation,
)
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.defragmentation import MeasuredChunk, Phase, Union, choose_union, runs
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document

logger = get_logger("configd.balancer")

PAUSE_SECONDS: Final = 10.0
"""From an error to the next attempt."""

_MERGED_MAX: Final = 1000
"""From this number on, chunks that belong together are merged in several steps; the last phase merges the results."""

_THROTTLING: Final = "chunkDefragmentationThrottlingMS"


class Defragmentation:
    """Defragments one collection.

    Args:
        primary: the term's resources.
        namespace: the collection.
        on_step: called after each step with its name.
    """

    def __init__(self, primary: Primary, namespace: str, on_step: Callable[[str], None]) -> None:
        self._primary = primary
        self._namespace = namespace
        self._on_step = on_step
        self._begun_with: Situation | None = None

    async def run(self) -> None:
        """Run the remaining phases; a phase with an error is repeated after a pause."""
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
            await set_phase(self._primary, situation.entry, phase)
            await steps[phase]()
            phase = phase.next
        await forget(self._primary, (await self._next_step()).entry)

    # Phases

    async def _merge_and_measure(self) -> None:
        async for run in self._runs():
            if len(run) == 1 and run[0].size is not None:
                continue
            situation = await self._next_step()
            shard = situation.shards.get(run[0].shard)
            if shard is None:
                continue
            whole = run[0]
            if len(run) > 1:
                whole = await self._merge_run(situation, shard, run)
                await self._throttle()
            if whole.size is None:
                async with step(self._primary):
                    await measure(self._primary, shard, situation.entry, whole, situation.threshold)
                self._on_step("measured")

    async def _move_and_merge(self) -> None:
        """Deal with all small chunks in order, again and again until a pass changes nothing."""
        while await self._pass_over_small_chunks():
            # A move changes the version of a further chunk of the donor, which thereby loses its recorded size.
            await self._merge_and_measure()

    async def _pass_over_small_chunks(self) -> bool:
        """Deal with each small chunk once; returns whether there was anything to be done."""
        is_changed, above = False, None
        while True:
            situation = await self._next_step()
            catalog, entry = self._primary.catalog, situation.entry
            chunk = await next_small_chunk(catalog, entry, situation.threshold, above)
            if chunk is None:
                return is_changed
            above = chunk.range.min
            if chunk.shard not in situation.shards:
                continue
            neighbours = await neighbours_of(catalog, entry, chunk)
            union = choose_union(chunk, neighbours, situation.zones, situation.may_receive, situation.threshold)
            if union is not None and await self._unite(situation, union):
                is_changed = True
                await self._throttle()

    async def _merge(self) -> None:
        async for run in self._runs():
            if len(run) > 1:
                situation = await self._next_step()
                shard = situation.shards.get(run[0].shard)
                if shard is not None:
                    await self._merge_run(situation, shard, run)
                    await self._throttle()

    # Steps

    async def _next_step(self) -> Situation:
        """The situation in which the next step is made; errors as `wait_situation`.

        Raises:
            ReplacedError: the collection was dropped and created again, or resharded, since the first step.
        """
        situation = await wait_situation(self._primary, self._namespace)
        if self._begun_with is not None and situation.entry.uuid != self._begun_with.entry.uuid:
            raise ReplacedError
        return situation

    async def _runs(self) -> AsyncIterator[list[MeasuredChunk]]:
        """The runs of chunks that can be merged, in order; a long one comes in several pieces."""
        situation = await self._next_step()
        rest: list[MeasuredChunk] = []
        async for page in chunks_in_order(self._primary.catalog, situation.entry):
            *complete, rest = runs([*rest, *page], situation.zones)
            for run in complete:
                yield run
            if len(rest) >= _MERGED_MAX:
                yield rest
                rest = []
        if rest:
            yield rest

    async def _merge_run(self, situation: Situation, shard: ShardEntry, run: list[MeasuredChunk]) -> MeasuredChunk:
        async with step(self._primary):
            merged = await merge(self._primary, shard, situation.entry, run, situation.threshold)
        self._on_step("merged")
        return merged

    async def _unite(self, situation: Situation, union: Union) -> bool:
        """Move a small chunk to its neighbour and merge them; returns whether that was done.

        A chunk that cannot be moved now stays as it is in this pass.
        """
        recipient = situation.shards[union.recipient]
        if union.is_move:
            try:
                await self._move(situation, union.chunk, recipient)
            except CommandError as error:
                is_busy = error.code == ErrorCode.ConflictingOperationInProgress
                (logger.info if is_busy else logger.warning)(
                    "A small chunk could not be moved to its neighbour", namespace=self._namespace, error=str(error)
                )
                return False
        await self._merge_run(situation, recipient, list(union.parts))
        return True

    async def _move(self, situation: Situation, chunk: MeasuredChunk, recipient: ShardEntry) -> None:
        donor, busy = situation.shards[chunk.shard], self._primary.busy_shards
        while True:
            await busy.wait_free(donor.id, recipient.id)
            with busy.taking(donor.id, recipient.id) as is_free:
                if is_free:
                    async with step(self._primary):
                        await self._move_now(situation, donor, recipient, chunk)
                    return

    async def _move_now(
        self, situation: Situation, donor: ShardEntry, recipient: ShardEntry, chunk: MeasuredChunk
    ) -> None:
        logger.info(
            "Moving a small chunk to its neighbour",
            namespace=self._namespace,
            min=decode_document(chunk.range.min),
            max=decode_document(chunk.range.max),
            to_shard=recipient.id,
        )
        entry, configuration = situation.entry, situation.configuration
        await move(self._primary, donor, recipient, entry, chunk, configuration, situation.chunk_bytes_max)
        self._on_step("moved")

    async def _throttle(self) -> None:
        """The pause between merges and moves."""
        reply = await self._primary.catalog.mongod.command("admin", {"getParameter": 1, _THROTTLING: 1})
        await trio.sleep(int(reply[_THROTTLING]) / 1000)
