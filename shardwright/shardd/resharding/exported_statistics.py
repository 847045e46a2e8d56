"""The metrics of a shard's parts in resharding operations."""

from shardwright.daemon.metrics import Metrics
from shardwright.sharding.resharding.statistics import ReshardingStatistics


def export_metrics(metrics: Metrics, statistics: ReshardingStatistics) -> None:
    """Export what a shard daemon has counted."""
    metrics.observed_counter(
        "resharding_documents_copied",
        "Documents that this shard has received by resharding",
        lambda: statistics.documents_copied,
    )
    metrics.observed_counter(
        "resharding_bytes_copied",
        "Bytes of the documents that this shard has received by resharding",
        lambda: statistics.bytes_copied,
    )
    metrics.observed_counter(
        "resharding_changes_applied",
        "Changes that this shard has applied to collections that were being resharded",
        lambda: statistics.changes_applied,
    )
    metrics.observed_counter(
        "resharding_held_writes",
        "Writes that have waited on this shard for a resharding to end",
        lambda: statistics.held_writes,
    )
