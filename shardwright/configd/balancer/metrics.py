"""The balancer's metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from shardwright.configd.balancer.actions import TooBig
from shardwright.daemon.metrics import Counter, LabelledCounter, Metrics

_MOVES: Final = ("moved", "failed", *(each.value for each in TooBig))
_DEFRAGMENTATION_STEPS: Final = ("merged", "measured", "moved")


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
