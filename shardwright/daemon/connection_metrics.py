"""Metrics of a daemon's connections, incoming and outgoing, and of the faults that ended some of them."""

from shardwright.daemon.metrics import Metrics
from shardwright.wire.logger import INTERNAL_ERRORS
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.unread import UNREAD_REPLIES


def measure_connections(metrics: Metrics, server: Server, pools: ConnectionPools) -> None:
    """Add metrics of the connected clients and of the pools of connections to other hosts.

    Args:
        metrics: the daemon's metrics.
        server: the server for its clients.
        pools: its connections to other hosts.
    """
    metrics.gauge("open_connections", "Open client connections", lambda: len(server.clients))
    metrics.observed_counter(
        "connections_refused",
        "Client connections refused because the limit on open connections was reached",
        lambda: server.connections_refused,
    )
    newcomers = server.newcomers
    metrics.gauge(
        "unauthenticated_connections",
        "Client connections that have not logged in, where they have to",
        lambda: 0 if newcomers is None else len(newcomers),
    )
    metrics.observed_counter(
        "unauthenticated_connections_closed",
        "Client connections closed because they did not log in in time, or were too many",
        lambda: 0 if newcomers is None else newcomers.closed,
    )
    metrics.observed_counter(
        "protocol_errors", "Client connections closed because of a malformed message", lambda: server.protocol_errors
    )
    metrics.observed_counter(
        "internal_errors",
        "Unexpected exceptions, each logged with its traceback; one ends a request, a connection or a job",
        lambda: INTERNAL_ERRORS.total,
    )
    metrics.gauge(
        "unread_reply_bytes",
        "Memory held by replies that clients have not read",
        lambda: UNREAD_REPLIES.total_bytes,
    )
    metrics.observed_counter(
        "slow_clients_closed",
        "Client connections closed because their unread replies held too much memory",
        lambda: UNREAD_REPLIES.clients_closed,
    )
    metrics.observed_counter(
        "long_replies_refused",
        "Replies of shards refused because unread replies held all the memory allowed",
        lambda: UNREAD_REPLIES.reservations.refused,
    )
    metrics.gauge(
        "unread_reply_bytes_max",
        "Peak since the process started of the memory held by replies that clients have not read",
        lambda: UNREAD_REPLIES.peak_bytes,
    )
    metrics.gauge(
        "held_batch_bytes",
        "Memory held by batches that idle cursors have fetched and not returned, part of unread_reply_bytes",
        lambda: UNREAD_REPLIES.holdings.total_bytes,
    )
    metrics.observed_counter(
        "cursors_ended_for_room",
        "Idle cursors killed to free memory for other replies",
        lambda: UNREAD_REPLIES.holdings.ended,
    )
    metrics.labelled_gauge(
        "pool_connections",
        "Connections to other hosts that are available or in use, and operations waiting for one",
        "state",
        lambda: _totals(pools),
    )


def _totals(pools: ConnectionPools) -> dict[str, float]:
    # By state, not by host: hosts come and go, and label values must be few and known.
    statistics = pools.statistics().values()
    return {
        "available": sum(pool.available for pool in statistics),
        "in_use": sum(pool.in_use for pool in statistics),
        "waiting": sum(pool.waiting for pool in statistics),
    }
