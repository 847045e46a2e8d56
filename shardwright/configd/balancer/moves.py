"""The moves of one round, all at the same time; and what is done about chunks that are too big to move."""

import trio

from shardwright.configd.balancer.actions import TOO_BIG, move, relieve
from shardwright.configd.balancer.cluster_view import ClusterView
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.balancer.shown import shown
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.decisions import Decisions, Move
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")


class Moves:
    """The moves that a round has decided upon.

    Args:
        primary: the term's resources.
        configuration: the settings with which they are made.
        metrics: counts them.
        view: the cluster as the round has seen it.
        decisions: all decisions of the round, with what was left alone.

    Attributes:
        moved: the number of chunks moved, or split or marked because they were too big, as MongoDB counts.
    """

    def __init__(
        self,
        primary: Primary,
        configuration: Configuration,
        metrics: BalancerMetrics,
        view: ClusterView,
        decisions: Decisions,
    ) -> None:
        self._primary = primary
        self._configuration = configuration
        self._metrics = metrics
        self._view = view
        self.decisions = decisions
        self.moved = 0

    async def make(self) -> None:
        """Make all of them; returns when the last one is over."""
        async with trio.open_nursery() as nursery:
            for each in self.decisions.moves:
                nursery.start_soon(self._move_if_free, each)

    async def _move_if_free(self, decided: Move) -> None:
        """Move a chunk, unless the defragmentation of a collection has begun to move another one on the same shards."""
        with self._primary.busy_shards.taking(decided.donor, decided.recipient) as is_free:
            if is_free:
                await self._move(decided)
            else:
                logger.debug(
                    "Left alone",
                    why="one of its shards has begun another move meanwhile",
                    **shown(decided.to_document()),
                )

    async def _move(self, decided: Move) -> None:
        fields = shown(decided.to_document())
        logger.info("Moving a chunk", **fields)
        collection, bound = self._view.entries[str(decided.namespace)].uuid, decided.chunk.range.min
        try:
            await move(self._primary, self._view, self._configuration, decided)
        except CommandError as error:
            if error.code in TOO_BIG and await self._relieve(decided, error):
                self.moved += 1
                return
            self._metrics.moves.add("failed")
            logger.warning("A move failed", error=str(error), **fields)
            if error.code != ErrorCode.ConflictingOperationInProgress:
                self._primary.held_back.failed(collection, bound, str(error))
        else:
            self.moved += 1
            self._metrics.moves.add("moved")
            self._primary.held_back.moved(collection, bound)

    async def _relieve(self, decided: Move, error: CommandError) -> bool:
        """Deal with a chunk that is too big to move; returns whether it is dealt with."""
        try:
            done = await relieve(self._primary, self._view, decided)
        except (CommandError, BackendError) as failure:
            logger.warning("A chunk is too big to move, and could not be split", error=str(failure))
            return False
        self._metrics.moves.add(done.value)
        logger.info("A chunk was too big to move", done=done.value, error=str(error), **shown(decided.to_document()))
        return True
