"""The balancer's loop of rounds in one term, one round, and its metrics.

A round reads, decides, splits, decides again, and moves. The moves run concurrently. A chunk that is too big to move is
split or marked jumbo.
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from time import time
from typing import Any, Final

import trio
from bson.raw_bson import RawBSONDocument

from shardwright.configd.balancer.cluster_view import ChunkAnswers, ClusterView, Configuration, read_view
from shardwright.configd.balancer.commands_scheduler import TOO_BIG, TooBig, move, relieve, split_at
from shardwright.configd.term.term import BusyShards, Term
from shardwright.daemon.metrics import Counter, LabelledCounter, Metrics
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState, Decisions, Move, Split
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

_MOVES: Final = ("moved", "failed", *(each.value for each in TooBig))
_DEFRAGMENTATION_STEPS: Final = ("merged", "measured", "moved")

_NAMES: Final = {"ns": "namespace", "from": "donor", "to": "recipient", "reason": "why"}
_CAPITAL: Final = re.compile(r"([A-Z])")

IDLE_SECONDS: Final = 10.0
"""Pause after a round without moves, or with an error."""

BUSY_SECONDS: Final = 1.0
"""Pause after a round with moves."""

PATIENCE_SECONDS: Final = 5.0
"""Maximum wait of the next round for the moves of a round.

Longer moves, of a large chunk or on a hanging shard, continue alongside it. Their shards are left out of it.
"""


@dataclass(slots=True)
class BalancerMetrics:
    """Counts of all terms of this daemon.

    Attributes:
        moves: moves by result: ``moved`` or ``failed``, and ``split`` or ``jumbo`` for chunks that were too big.
        defragmentation: steps of defragmentation: ``merged``, ``measured`` or ``moved``.
        round_ended_at: the end of the last round in seconds since 1970; 0 if there was none.
        round_error: the name of the error that ended the last round, else empty.
        data_bytes: bytes of documents of sharded collections by shard, as of the last round.
    """

    rounds: Counter = field(default_factory=Counter)
    failed_rounds: Counter = field(default_factory=Counter)
    splits: Counter = field(default_factory=Counter)
    moves: LabelledCounter = field(default_factory=partial(LabelledCounter, _MOVES))
    defragmentation: LabelledCounter = field(default_factory=partial(LabelledCounter, _DEFRAGMENTATION_STEPS))
    round_seconds: float = 0.0
    round_ended_at: float = 0.0
    round_error: str = ""
    data_bytes: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Metrics) -> "BalancerMetrics":
        """Create the counts and export them."""
        balancer = cls(
            metrics.counter("balancer_rounds", "Rounds of the balancer"),
            metrics.counter("balancer_failed_rounds", "Rounds of the balancer that ended with an error"),
            metrics.counter("balancer_splits", "Chunks that the balancer has split at the bounds of zones"),
            metrics.labelled_counter("balancer_moves", "Moves of the balancer by their result", "result", _MOVES),
            metrics.labelled_counter(
                "defragmentation_steps", "What defragmentation has done to chunks", "step", _DEFRAGMENTATION_STEPS
            ),
        )
        metrics.gauge(
            "balancer_round_seconds", "Time that the balancer's last round took", lambda: balancer.round_seconds
        )
        metrics.gauge(
            "balancer_round_timestamp_seconds",
            "Time in seconds since 1970 at which the balancer's last round ended",
            lambda: balancer.round_ended_at,
        )
        metrics.gauges(
            "balancer_round_error",
            "1 for the error that has ended the balancer's last round, by its name; absent if none has",
            ("error",),
            lambda: {(balancer.round_error,): 1} if balancer.round_error else {},
        )
        metrics.labelled_gauge(
            "shard_data_bytes",
            "Bytes of documents of sharded collections by shard, as of the balancer's last round",
            "shard",
            lambda: balancer.data_bytes,
        )
        return balancer

    def note_sizes(self, shards: Iterable[str], sizes: Iterable[Mapping[str, int]]) -> None:
        """Record the sizes reported for a round: for each collection, the bytes by shard."""
        totals: dict[str, float] = dict.fromkeys(shards, 0)
        for by_shard in sizes:
            for shard, size in by_shard.items():
                totals[shard] = totals.get(shard, 0) + size
        self.data_bytes = totals


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


class Balancer:
    """The balancer of one term."""

    def __init__(self, term: Term, metrics: BalancerMetrics) -> None:
        self._term = term
        self._metrics = metrics
        self._configuration = Configuration()

    async def run(self) -> None:
        """Run rounds until cancelled, whenever the settings permit them."""
        async with trio.open_nursery() as nursery:
            while True:
                moved = await self._maybe_run_round(nursery)
                await self._term.balancer_rounds.wait_wanted(BUSY_SECONDS if moved else IDLE_SECONDS)

    async def _maybe_run_round(self, nursery: trio.Nursery) -> bool:
        """Run a round if the settings permit it; returns whether it has moved something so far."""
        rounds = self._term.balancer_rounds
        rounds.begin()
        try:
            self._configuration = await self._configuration.reread(self._term.catalog)
            rounds.mode = self._configuration.balancer.mode
            # The active window is in the server's local time, as in MongoDB.
            if not self._configuration.is_valid or not self._configuration.balancer.may_balance(datetime.now()):
                return False
            rounds.is_deciding = True
            return await self._run_round(nursery)
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the balancer's settings", error=str(error))
            return False
        finally:
            rounds.end()

    async def _run_round(self, nursery: trio.Nursery) -> bool:
        self._metrics.rounds.add()
        self._metrics.round_error = ""
        started = trio.current_time()
        try:
            moves = await Round(self._term, self._configuration, self._metrics).decide()
        except Exception as error:
            await self._note_failure(started, error)
            return False
        finally:
            self._metrics.round_seconds = trio.current_time() - started
            self._metrics.round_ended_at = time()
        _log_what_is_left(moves)
        if moves.decisions.moves:
            over = trio.Event()
            nursery.start_soon(self._make_moves, moves, started, over)
            with trio.move_on_after(PATIENCE_SECONDS):
                await over.wait()
        return moves.moved > 0

    async def _make_moves(self, moves: Moves, started: float, over: trio.Event) -> None:
        with self._term.balancer_rounds.moving():
            try:
                await moves.make()
            except Exception as error:
                await self._note_failure(started, error)
            else:
                counts = {"candidateChunks": len(moves.decisions.moves), "chunksMoved": moves.moved}
                await self._log_round(started, {"errorOccurred": False, **counts})
            self._metrics.round_seconds = trio.current_time() - started
            self._metrics.round_ended_at = time()
        over.set()

    async def _note_failure(self, started: float, error: Exception) -> None:
        """Record that a round failed, even for an unexpected reason.

        The error must not end the daemon, because the next round would end the next primary's daemon too.
        """
        self._metrics.failed_rounds.add()
        self._metrics.round_error = error.code_name if isinstance(error, CommandError) else type(error).__name__
        if isinstance(error, CommandError | BackendError):
            logger.warning("A round failed", error=str(error))
        else:
            logger.exception("A round failed unexpectedly")
        await self._log_round(started, {"errorOccurred": True, "errmsg": str(error)})

    async def _log_round(self, started: float, details: dict[str, Any]) -> None:
        milliseconds = int((trio.current_time() - started) * 1000)
        await self._term.changelog.log_action("balancer.round", {"executionTimeMillis": milliseconds, **details})


def _log_what_is_left(moves: Moves) -> None:
    for each in moves.decisions.skipped:
        logger.debug("Left alone", **shown(each.to_document()))
