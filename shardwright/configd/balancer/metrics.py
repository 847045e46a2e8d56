"""The balancer's metrics."""

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
        rounds: rounds.
        failed_rounds: rounds that ended with an error.
        splits: splits at the bounds of zones.
        moves: moves by result: ``moved``, ``failed``, or, for chunks that were too big, ``split`` or ``jumbo``.
        defragmentation: what defragmentation has done to chunks: ``merged``, ``measured`` or ``moved``.
        round_seconds: how long the last round took.
    """

    rounds: Counter = field(default_factory=Counter)
    failed_rounds: Counter = field(default_factory=Counter)
    splits: Counter = field(default_factory=Counter)
    moves: LabelledCounter = field(default_factory=partial(LabelledCounter, _MOVES))
    defragmentation: LabelledCounter = field(default_factory=partial(LabelledCounter, _DEFRAGMENTATION_STEPS))
    round_seconds: float = 0.0

    @classmethod
    def of(cls, metrics: Metrics) -> "BalancerMetrics":
        """Counts that a daemon exports."""
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
        return balancer
