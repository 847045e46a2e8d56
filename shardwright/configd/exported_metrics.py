"""The config daemon's metrics of the cluster and the balancer; empty or 0 while it is not primary."""

from shardwright.configd.config_server import ConfigServer
from shardwright.daemon.metrics import Metrics

_OFF = "off"


def export_metrics(metrics: Metrics, server: ConfigServer) -> None:
    """Export the primary's counts of shards, chunks and the balancer."""
    metrics.gauge("is_primary", "1 if the mongod of this daemon is primary, else 0", lambda: server.sidecar.is_primary)
    metrics.labelled_gauge(
        "chunks", "Chunks of all sharded collections by shard", "shard", lambda: server.census.chunks()
    )
    metrics.labelled_gauge("jumbo_chunks", "Chunks marked as jumbo by shard", "shard", lambda: server.census.jumbo())
    metrics.labelled_gauge(
        "shard_draining", "1 for a shard that is being removed, 0 for others", "shard", lambda: server.census.draining
    )
    metrics.gauge("sharded_collections", "Sharded collections of the cluster", lambda: server.census.collections)
    metrics.gauge(
        "balancer_enabled",
        "1 if the settings read last permit balancing, apart from the active window, else 0",
        lambda: server.current_term is not None and server.current_term.balancer_rounds.mode != _OFF,
    )
    metrics.gauge(
        "balancer_running",
        "1 while a round of the balancer or one of its moves is in progress, else 0",
        lambda: server.current_term is not None and server.current_term.balancer_rounds.is_balancing,
    )
