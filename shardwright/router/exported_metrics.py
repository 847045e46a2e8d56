"""Router metrics of shards, targeting, the routing cache, and open cursors, transactions and sessions.

The dispatcher, the passages and the slow log declare their own. docs/daemon.md lists all.
"""

from collections.abc import Iterable

from shardwright.daemon.metrics import Metrics
from shardwright.router.context.router_context import RouterContext
from shardwright.router.sending.shard_counts import durations, transferred
from shardwright.wire.transport.monitor import ReplicaSetMonitor


def export_metrics(context: RouterContext) -> None:
    """Export a router's counts and its view of the cluster."""
    _export_shards(context, context.metrics)
    _export_routing(context, context.metrics)
    _export_clients(context, context.metrics)


def _export_shards(context: RouterContext, metrics: Metrics) -> None:
    operations, counts = metrics.operations, context.shard_counts

    def known() -> tuple[str, ...]:
        return tuple(shard.id for shard in context.shards.known())

    def monitors() -> Iterable[tuple[str, ReplicaSetMonitor]]:
        return ((shard.id, shard.client.monitor) for shard in context.shards.known())

    metrics.gauge(
        "config_primary_known",
        "1 if a primary of the config servers is known, else 0: only cached routing can be used",
        lambda: context.catalog.client.monitor.primary is not None,
    )
    metrics.labelled_gauge(
        "shard_primary_known",
        "1 if a primary of the shard is known, else 0; the config servers are a shard here",
        "shard",
        lambda: {shard: monitor.primary is not None for shard, monitor in monitors()},
    )
    metrics.gauges(
        "shard_members",
        "Members of each shard by whether they have answered the last hello",
        ("shard", "state"),
        lambda: _members(monitors()),
    )
    metrics.histograms(
        "shard_request_duration_seconds",
        "Time from sending a request to a shard until its reply",
        ("shard",),
        lambda: durations(counts.statistics(operations, known())),
    )
    metrics.observed_counters(
        "shard_bytes",
        "Bytes of requests to each shard and of its replies",
        ("shard", "direction"),
        lambda: transferred(counts.statistics(operations, known())),
    )
    metrics.observed_counters(
        "shard_errors",
        "Requests that a shard did not answer, or answered with an error",
        ("shard", "kind"),
        lambda: counts.errors(known()),
    )


def _export_routing(context: RouterContext, metrics: Metrics) -> None:
    routing, cache = context.routing.statistics, context.routing
    count = metrics.observed_counter
    count("full_refreshes", "Full refreshes of routing tables", lambda: routing.full_refreshes)
    count("incremental_refreshes", "Incremental refreshes of routing tables", lambda: routing.incremental_refreshes)
    count("failed_refreshes", "Failed refreshes of routing tables", lambda: routing.failed_refreshes)
    count("refresh_seconds", "Time spent on refreshes of routing tables", lambda: routing.refresh_seconds)
    count(
        "stale_config_errors",
        "StaleConfig and StaleDbVersion errors received from shards",
        lambda: routing.stale_config_errors,
    )
    metrics.labelled_gauge(
        "routing_cache_entries",
        "Databases and collections in the routing cache",
        "kind",
        lambda: {"database": len(cache.databases), "collection": len(cache.collections)},
    )
    metrics.observed_counters(
        "targeted_operations",
        "Successful reads and writes by the part of a collection's shards that they were sent to",
        ("command", "target"),
        context.target_counts.by_command_and_part,
    )
    metrics.observed_counters(
        "write_statements",
        "Statements of writes that were executed",
        ("kind",),
        lambda: {(kind.command,): number for kind, number in context.statement_counts.items()},
    )


def _export_clients(context: RouterContext, metrics: Metrics) -> None:
    cursors, transactions = context.cursors, context.transactions
    metrics.gauge(
        "open_cursors_of_closed_connections",
        "Open client cursors whose last client connection has closed",
        lambda: cursors.statistics().open_of_closed_connections,
    )
    metrics.gauge("open_cursors", "Open client cursors", lambda: cursors.statistics().open_total)
    metrics.gauge(
        "open_transactions", "Open transactions of clients", lambda: len(transactions.sessions_with_open_ones())
    )
    metrics.observed_counters(
        "transactions_ended",
        "Transactions by their outcome",
        ("outcome",),
        lambda: {
            ("committed",): transactions.statistics.committed,
            ("aborted",): transactions.statistics.aborts.total(),
        },
    )
    metrics.gauge(
        "sessions",
        "Logical sessions used here since their uses were last written to the config servers",
        lambda: len(context.sessions),
    )


def _members(monitors: Iterable[tuple[str, ReplicaSetMonitor]]) -> dict[tuple[str, ...], float]:
    numbers: dict[tuple[str, ...], float] = {}
    for shard, monitor in monitors:
        known = sum(member.is_known for member in monitor.members.values())
        numbers[shard, "known"] = known
        numbers[shard, "unknown"] = len(monitor.members) - known
    return numbers
