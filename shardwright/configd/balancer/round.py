"""One round: read, decide, split, decide again, move.

The moves run concurrently. A chunk that is too big to move is split or marked jumbo.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import trio
from bson.raw_bson import RawBSONDocument

from shardwright.configd.balancer.actions import TOO_BIG, move, relieve, split_at
from shardwright.configd.balancer.chunk_answers import ChunkAnswers
from shardwright.configd.balancer.cluster_view import ClusterView, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.term.term import BusyShards, Term
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState
from shardwright.sharding.balancing.decisions import Decisions, Move, Split
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

_NAMES: Final = {"ns": "namespace", "from": "donor", "to": "recipient", "reason": "why"}
_CAPITAL: Final = re.compile(r"([A-Z])")


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a decision for the log, with shard keys as text."""
    return {_name(name): _text(value) for name, value in document.items()}


def _name(name: str) -> str:
    return _NAMES.get(name) or _CAPITAL.sub(r"_\1", name).lower()


def _text(value: object) -> object:
    if isinstance(value, RawBSONDocument):
        return document_text(bytes(value.raw))
    return [_text(each) for each in value] if isinstance(value, list) else value


logger = get_logger("configd.balancer")


class Moves:
    """The moves that a round has chosen.

    ``moved`` counts chunks moved, or split or marked because they were too big, as in MongoDB.
    """

    def __init__(
        self,
        term: Term,
        configuration: Configuration,
        metrics: BalancerMetrics,
        view: ClusterView,
        decisions: Decisions,
    ) -> None:
        self._term = term
        self._configuration = configuration
        self._metrics = metrics
        self._view = view
        self.decisions = decisions
        self.moved = 0

    async def make(self) -> None:
        """Make all moves; returns after the last one has ended."""
        async with trio.open_nursery() as nursery:
            for each in self.decisions.moves:
                nursery.start_soon(self._move_if_free, each)

    async def _move_if_free(self, decided: Move) -> None:
        """Move a chunk, unless a defragmentation has started another move on the same shards."""
        with self._term.busy_shards.taking(decided.donor, decided.recipient) as is_free:
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
            await move(self._term, self._view, self._configuration, decided)
        except CommandError as error:
            if error.code in TOO_BIG and await self._relieve(decided, error):
                self.moved += 1
                return
            self._metrics.moves.add("failed")
            logger.warning("A move failed", error=str(error), **fields)
            if error.code != ErrorCode.ConflictingOperationInProgress:
                self._term.move_backoff.failed(collection, bound, str(error))
        else:
            self.moved += 1
            self._metrics.moves.add("moved")
            self._term.move_backoff.moved(collection, bound)

    async def _relieve(self, decided: Move, error: CommandError) -> bool:
        """Split or mark a chunk that is too big to move; returns whether that succeeded."""
        try:
            done = await relieve(self._term, self._view, decided)
        except (CommandError, BackendError) as failure:
            logger.warning("A chunk is too big to move, and could not be split", error=str(failure))
            return False
        self._metrics.moves.add(done.value)
        logger.info("A chunk was too big to move", done=done.value, error=str(error), **shown(decided.to_document()))
        return True


SPLITS_AT_ONCE: Final = 4
"""Maximum number of concurrent splits in a round."""

SPLIT_SECONDS_MAX: Final = 30.0
"""Time limit of a split. A slower one, for example on a hanging shard, delays its collection but not the round."""


class Round:
    """One round of the balancer."""

    def __init__(self, term: Term, configuration: Configuration, metrics: BalancerMetrics) -> None:
        self._term = term
        self._configuration = configuration
        self._metrics = metrics

    async def decide(self) -> Moves:
        """Make the splits that the policy chooses; returns the moves, none if the balancer was stopped.

        Errors as `Catalog.find`.
        """
        view = await read_view(self._term, self._configuration)
        self._metrics.note_sizes(view.shards, (each.sizes for each in view.collections))
        answers = answers_for(self._term, view)
        splits = (await answers.drive(choose_splits(view.collections))).splits
        unsplit = await self._split(view, splits)
        cluster = _without_busy_shards(view.cluster, self._term.busy_shards)
        decisions = await answers.drive(choose_moves(cluster, in_turn(view, unsplit)))
        decisions.splits = splits
        # The balancer may have been stopped during the shards' reports.
        now = await self._configuration.reread(self._term.catalog)
        if not now.is_valid or now.balancer.mode != "full":
            decisions.moves = []
        return Moves(self._term, self._configuration, self._metrics, view, decisions)

    async def _split(self, view: ClusterView, splits: Sequence[Split]) -> dict[str, str]:
        """Make splits; returns the reasons why collections still have a zone bound inside a chunk."""
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
        """Make a split; returns the reason if it failed, else an empty text."""
        if split.chunk.shard in view.silent:
            return view.silent[split.chunk.shard]
        try:
            with trio.fail_after(SPLIT_SECONDS_MAX):
                await split_at(self._term, view, split)
        except trio.TooSlowError:
            return f"no answer within {SPLIT_SECONDS_MAX:.0f} s"
        except CommandError as error:
            return str(error)
        return ""


def _without_busy_shards(cluster: ClusterState, busy: BusyShards) -> ClusterState:
    shards = tuple(replace(each, is_available=each.is_available and each.id not in busy) for each in cluster.shards)
    return replace(cluster, shards=shards)


def answers_for(term: Term, view: ClusterView) -> ChunkAnswers:
    """Create the answers to the policy, which hold back chunks whose moves have failed."""
    held_back = {name: term.move_backoff.lower_bounds(entry.uuid) for name, entry in view.entries.items()}
    return ChunkAnswers(term.catalog, view.shards, view.entries, held_back)


def in_turn(view: ClusterView, unsplit: Mapping[str, str]) -> list[CollectionState]:
    """Return the collections in random order, so that each gets its turn when shards are scarce.

    While a zone bound lies inside a chunk, ``unsplit`` has the reason why the collection gets no moves.
    """
    collections = [
        replace(each, why_skipped=each.why_skipped or unsplit.get(str(each.namespace), "")) for each in view.collections
    ]
    return random.sample(collections, len(collections))
