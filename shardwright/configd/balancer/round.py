"""The decisions of one round: read, decide, split, decide again."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import trio

from shardwright.configd.balancer.actions import split_at
from shardwright.configd.balancer.chunk_answers import ChunkAnswers
from shardwright.configd.balancer.cluster_view import ClusterView, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.balancer.moves import Moves
from shardwright.configd.balancer.shown import shown
from shardwright.configd.primary.busy_shards import BusyShards
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState
from shardwright.sharding.balancing.decisions import Split
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

SPLITS_AT_ONCE: Final = 4
"""Splits of one round that are in progress at the same time."""

SPLIT_SECONDS_MAX: Final = 30.0
"""A split that takes longer, because its shard hangs, holds up the collection, but not the round."""


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

    async def decide(self) -> Moves:
        """Make the splits that the policy decides upon; returns the moves, none if the balancer was stopped meanwhile.

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
        # The balancer may have been stopped while the shards were asked.
        now = await self._configuration.reread(self._primary.catalog)
        if not now.is_valid or now.balancer.mode != "full":
            decisions.moves = []
        return Moves(self._primary, self._configuration, self._metrics, view, decisions)

    async def _split(self, view: ClusterView, splits: Sequence[Split]) -> dict[str, str]:
        """Make splits; returns the reasons why collections still have a chunk across the bound of a zone."""
        unsplit: dict[str, str] = {}
        limiter = trio.CapacityLimiter(SPLITS_AT_ONCE)

        async def make(split: Split) -> None:
            async with limiter:
                error = await self._why_not_split(view, split)
            if error:
                unsplit[str(split.namespace)] = f"a bound of a zone lies inside a chunk that cannot be split: {error}"
                logger.warning("A split at the bound of a zone failed", error=error, **shown(split.to_document()))
            else:
                self._metrics.splits.add()
                logger.info("Split a chunk at the bounds of zones", **shown(split.to_document()))

        async with trio.open_nursery() as nursery:
            for split in splits:
                nursery.start_soon(make, split)
        return unsplit

    async def _why_not_split(self, view: ClusterView, split: Split) -> str:
        """Make a split; returns why it could not be made, nothing if it was."""
        if split.chunk.shard in view.silent:
            return view.silent[split.chunk.shard]
        try:
            with trio.fail_after(SPLIT_SECONDS_MAX):
                await split_at(self._primary, view, split)
        except trio.TooSlowError:
            return f"no answer within {SPLIT_SECONDS_MAX:.0f} s"
        except CommandError as error:
            return str(error)
        return ""


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
