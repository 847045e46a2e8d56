"""Metrics of the coordinator of resharding operations."""

from shardwright.daemon.metrics import Metrics
from shardwright.sharding.resharding.statistics import ReshardingStatistics


def export_metrics(metrics: Metrics, statistics: ReshardingStatistics) -> None:
    """Export the counts of a config daemon."""
    metrics.observed_counter(
        "reshardings_started", "Resharding operations that this daemon has begun", lambda: statistics.started
    )
    metrics.observed_counter(
        "reshardings_succeeded", "Resharding operations that were committed", lambda: statistics.succeeded
    )
    metrics.observed_counter(
        "reshardings_failed", "Resharding operations that were aborted because of an error", lambda: statistics.failed
    )
    metrics.observed_counter(
        "reshardings_canceled", "Resharding operations that a user has aborted", lambda: statistics.canceled
    )
    metrics.gauge(
        "resharding_remaining_seconds",
        "Time that the slowest recipient of the present resharding operation still needs",
        lambda: statistics.remaining_millis[1] / 1000,
    )
