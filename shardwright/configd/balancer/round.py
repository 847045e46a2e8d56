"""One round: read, decide, split, decide again, move."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from shardwright.configd.balancer.actions import TOO_BIG, move, relieve, split_at
from shardwright.configd.balancer.chunk_answers import ChunkAnswers
from shardwright.configd.balancer.cluster_view import ClusterView, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.balancer.shown import shown
from shardwright.configd.primary.busy_shards import BusyShards
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState
from shardwright.sharding.balancing.decisions import Decisions, Move, Split
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

SPLITS_AT_ONCE: Final = 4
"""Splits of one round that are in progress at the same time."""


@dataclass(slots=True)
class RoundResult:
    """What a round has done.

    Attributes:
        decisions: all decisions, with what was left alone.
        moved: the number of chunks moved, or split or marked because they were too big, as MongoDB counts.
        failed: the number of moves that failed otherwise.
    """

    decisions: Decisions = field(default_factory=Decisions)
    moved: int = 0
    failed: int = 0


class Round:
    """One round of the balancer.

    Args:
        primary: the term's resources.
        configuration: the settings with which it works.
        metrics: counts what is done.
    """

    def __init__(self, primary: Primary, configuration: Configuration, metrics: BalancerMetrics) -> None:
        self._primary = primary
        self._configuration = configuration
        self._metrics = metrics

    async def run(self) -> RoundResult:
        """Make the splits and the moves that the policy decides upon.

        Raises:
            CommandError: the catalog could not be read.
            BackendError: the mongod does not answer.
        """
        view = await read_view(self._primary, self._configuration)
        answers = answers_for(self._primary, view)
        splits = (await answers.drive(choose_splits(view.collections))).splits
        unsplit = await self._split(view, splits)
        cluster = _without_busy_shards(view.cluster, self._primary.busy_shards)
        decisions = await answers.drive(choose_moves(cluster, in_turn(view, unsplit)))
        decisions.splits = splits
        result = RoundResult(decisions)
        # The balancer may have been stopped while the shards were asked.
        now = await self._configuration.reread(self._primary.catalog)
        if decisions.moves and now.is_valid and now.balancer.mode == "full":
            async with trio.open_nursery() as nursery:
                for each in decisions.moves:
                    nursery.start_soon(self._move_if_free, view, each, result)
        return result

    async def _move_if_free(self, view: ClusterView, decided: Move, result: RoundResult) -> None:
        """Move a chunk, unless the defragmentation of a collection has begun to move another one on the same shards."""
        with self._primary.busy_shards.taking(decided.donor, decided.recipient) as is_free:
            if is_free:
                await self._move(view, decided, result)

    async def _split(self, view: ClusterView, splits: Sequence[Split]) -> dict[str, str]:
        """Make splits; returns the reasons why collections still have a chunk across the bound of a zone."""
        unsplit: dict[str, str] = {}
        limiter = trio.CapacityLimiter(SPLITS_AT_ONCE)

        async def make(split: Split) -> None:
            async with limiter:
                try:
                    await split_at(self._primary, view, split)
                except CommandError as error:
                    logger.warning(
                        "A split at the bound of a zone failed", error=str(error), **shown(split.to_document())
                    )
                    unsplit[str(split.namespace)] = (
                        f"a bound of a zone lies inside a chunk that cannot be split: {error}"
                    )
                else:
                    self._metrics.splits.add()
                    logger.info("Split a chunk at the bounds of zones", **shown(split.to_document()))

        async with trio.open_nursery() as nursery:
            for split in splits:
                nursery.start_soon(make, split)
        return unsplit

    async def _move(self, view: ClusterView, decided: Move, result: RoundResult) -> None:
        fields = shown(decided.to_document())
        logger.info("Moving a chunk", **fields)
        collection, bound = view.entries[str(decided.namespace)].uuid, decided.chunk.range.min
        try:
            await move(self._primary, view, self._configuration, decided)
        except CommandError as error:
            if error.code in TOO_BIG and await self._relieve(view, decided, error):
                result.moved += 1
                return
            result.failed += 1
            self._metrics.moves.add("failed")
            logger.warning("A move failed", error=str(error), **fields)
            if error.code != ErrorCode.ConflictingOperationInProgress:
                self._primary.held_back.failed(collection, bound, str(error))
        else:
            result.moved += 1
            self._metrics.moves.add("moved")
            self._primary.held_back.moved(collection, bound)

    async def _relieve(self, view: ClusterView, decided: Move, error: CommandError) -> bool:
        """Deal with a chunk that is too big to move; returns whether it is dealt with."""
        try:
            done = await relieve(self._primary, view, decided)
        except (CommandError, BackendError) as failure:
            logger.warning("A chunk is too big to move, and could not be split", error=str(failure))
            return False
        self._metrics.moves.add(done.value)
        logger.info("A chunk was too big to move", done=done.value, error=str(error), **shown(decided.to_document()))
        return True


def _without_busy_shards(cluster: ClusterState, busy: BusyShards) -> ClusterState:
    shards = tuple(replace(each, is_available=each.is_available and each.id not in busy) for each in cluster.shards)
    return replace(cluster, shards=shards)


def answers_for(primary: Primary, view: ClusterView) -> ChunkAnswers:
    """Answers to the policy, by which chunks whose moves have failed are held back."""
    held_back = {name: primary.held_back.lower_bounds(entry.uuid) for name, entry in view.entries.items()}
    return ChunkAnswers(primary.catalog, view.shards, view.entries, held_back)


def in_turn(view: ClusterView, unsplit: Mapping[str, str]) -> list[CollectionState]:
    """The collections in random order, so that each gets its turn when shards are scarce.

    Args:
        view: contains the collections.
        unsplit: why a collection gets no moves as long as a bound of a zone lies inside one of its chunks.
    """
    collections = [
        replace(each, why_skipped=each.why_skipped or unsplit.get(str(each.namespace), "")) for each in view.collections
    ]
    return random.sample(collections, len(collections))
