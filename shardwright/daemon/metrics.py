"""The metrics of a daemon, in the text format of Prometheus: the registry, the process, connections."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import trio
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector

from shardwright.daemon.operation_metrics import Exemplars, Histogram, OperationMetrics, cumulative
from shardwright.daemon.version import package_version
from shardwright.wire.logger import INTERNAL_ERRORS
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.server import Server

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Counter:
    """A number that only increases."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Add ``amount``."""
        self.value += amount


class LabelledCounter:
    """Counters of the same kind, distinguished by one label.

    All of them exist from the start, because Prometheus's ``increase`` and ``rate`` miss the first event of a series
    that begins with it.
    """

    __slots__ = ("values",)

    def __init__(self, labels: Iterable[str]) -> None:
        self.values = dict.fromkeys(labels, 0)

    def add(self, label: str, amount: int = 1) -> None:
        """Add ``amount`` to the counter of a label value."""
        self.values[label] += amount


class Metrics(Collector):
    """All metrics of one daemon.

    Args:
        component: ``router``, ``shardd`` or ``configd``; metric names begin with ``shardwright_<component>``.
        commands: the commands by which operations are counted.
    """

    def __init__(self, component: str, commands: Iterable[str]) -> None:
        self._prefix = f"shardwright_{component}"
        self._readers: dict[str, Callable[[], Metric]] = {}
        self.operations = OperationMetrics(self._prefix, commands)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def counter(self, name: str, description: str) -> Counter:
        """Create a counter, exported as ``<prefix>_<name>_total``."""
        counter = Counter()
        self.observed_counter(name, description, lambda: counter.value)
        return counter

    def observed_counter(self, name: str, description: str, read_value: Callable[[], float]) -> None:
        """Export a counter kept elsewhere, whose value is read when metrics are read."""
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: CounterMetricFamily(full_name, description, value=read_value()))

    def labelled_counter(self, name: str, description: str, label: str, labels: Iterable[str]) -> LabelledCounter:
        """Create counters with one label, exported as ``<prefix>_<name>_total{label=…}``."""
        counter = LabelledCounter(labels)
        self.observed_counters(name, description, (label,), lambda: _by_tuple(counter.values))
        return counter

    def gauge(self, name: str, description: str, read_value: Callable[[], float]) -> None:
        """Export a gauge whose value is read when metrics are read."""
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: GaugeMetricFamily(full_name, description, value=read_value()))

    def labelled_gauge(
        self, name: str, description: str, label: str, read_values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Export gauges by label value, all read with one call when metrics are read."""
        self.gauges(name, description, (label,), lambda: _by_tuple(read_values()))

    def gauges(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        read_values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        """Export gauges with several labels, all read with one call when metrics are read.

        Args:
            read_values: returns the values by the labels' values, which are in the order of ``labels``.
        """
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: _filled(GaugeMetricFamily(full_name, description, labels=tuple(labels)), read_values()))

    def observed_counters(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        read_values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        """Export counters kept elsewhere that have labels; arguments as `gauges`."""
        full_name = f"{self._prefix}_{name}"
        self._add(
            name, lambda: _filled(CounterMetricFamily(full_name, description, labels=tuple(labels)), read_values())
        )

    def histogram(self, name: str, description: str) -> Histogram:
        """Create a histogram of durations without labels."""
        histogram = Histogram()
        self.histograms(name, description, (), lambda: {(): histogram})
        return histogram

    def histograms(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        read_values: Callable[[], Mapping[tuple[str, ...], Histogram]],
        exemplars: Exemplars | None = None,
    ) -> None:
        """Export histograms of durations kept elsewhere; arguments as `gauges`.

        Args:
            exemplars: traced operations by the last label; they may be added later.
        """
        full_name = f"{self._prefix}_{name}"

        def read() -> Metric:
            family = HistogramMetricFamily(full_name, description, labels=tuple(labels))
            for values, histogram in read_values().items():
                buckets = cumulative(histogram.buckets, None if exemplars is None else exemplars.get(values[-1]))
                family.add_metric(values, buckets=buckets, sum_value=histogram.seconds)
            return family

        self._add(name, read)

    def collect(self) -> Iterator[Metric]:
        """Yield the daemon's own metrics; called by the registry."""
        yield from self.operations.collect()
        for read in self._readers.values():
            yield read()

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format, including the process's."""
        return generate_latest(self._registry)

    def render_open_metrics(self) -> bytes:
        """Return all metrics in the OpenMetrics format."""
        rendered: bytes = generate_open_metrics(self._registry)  # type: ignore[no-untyped-call]
        return rendered

    def _add(self, name: str, read: Callable[[], Metric]) -> None:
        if name in self._readers:
            raise ValueError(f"there is already a metric named {name}")
        self._readers[name] = read


def _by_tuple(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}


_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def _filled(family: _Family, values: Mapping[tuple[str, ...], float]) -> _Family:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


LAG_PAUSE_SECONDS: Final = 0.5
"""Pause between two measurements of the event loop's lag."""


def measure_process(metrics: Metrics, tls: ProcessTls) -> Histogram:
    """Add metrics of the process; return the histogram that `measure_lag` fills."""
    build = package_version(), platform.python_version()
    metrics.gauges(
        "build_info", "Always 1, with the versions of this process as labels", ("version", "python"), lambda: {build: 1}
    )
    metrics.gauges(
        "certificate_expiry_timestamp_seconds",
        "Time in seconds since 1970 at which the certificate of this server expires; absent without TLS",
        (),
        lambda: {} if tls.expires_at is None else {(): tls.expires_at.timestamp()},
    )
    return metrics.histogram("event_loop_lag_seconds", "Time by which timers of the event loop fire late")


async def measure_lag(histogram: Histogram) -> None:
    """Measure the delay of a timer, until cancelled. Blocking the event loop delays all clients as much."""
    while True:
        due = trio.current_time() + LAG_PAUSE_SECONDS
        await trio.sleep_until(due)
        histogram.observe(trio.current_time() - due)


def measure_connections(metrics: Metrics, server: Server, pools: ConnectionPools) -> None:
    """Add metrics of a server's clients and of the pools of connections to other hosts."""
    metrics.gauge("open_connections", "Open client connections", lambda: len(server.clients))
    metrics.observed_counter("connections_accepted", "Client connections accepted", lambda: server.connections_created)
    metrics.observed_counters(
        "network_bytes",
        "Bytes exchanged with clients over TCP, as the kernel counts them",
        ("direction",),
        lambda: dict(zip((("received",), ("sent",)), server.traffic(), strict=True)),
    )
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
    unread_replies = server.transport.unread_replies
    metrics.gauge(
        "unread_reply_bytes",
        "Memory held by replies that clients have not read",
        lambda: unread_replies.total_bytes,
    )
    metrics.observed_counter(
        "slow_clients_closed",
        "Client connections closed because their unread replies held too much memory",
        lambda: unread_replies.clients_closed,
    )
    metrics.observed_counter(
        "long_replies_refused",
        "Replies of shards refused because unread replies held all the memory allowed",
        lambda: unread_replies.reservations.refused,
    )
    metrics.gauge(
        "unread_reply_bytes_max",
        "Peak since the process started of the memory held by replies that clients have not read",
        lambda: unread_replies.peak_bytes,
    )
    metrics.gauge(
        "held_batch_bytes",
        "Memory held by batches that idle cursors have fetched and not returned, part of unread_reply_bytes",
        lambda: unread_replies.holdings.total_bytes,
    )
    metrics.observed_counter(
        "cursors_ended_for_room",
        "Idle cursors killed to free memory for other replies",
        lambda: unread_replies.holdings.ended,
    )
    metrics.labelled_gauge(
        "pool_connections",
        "Connections to other hosts that are available or in use, and operations waiting for one",
        "state",
        lambda: _totals(pools),
    )
    metrics.gauges(
        "pool_host_connections",
        "Connections by host that are available or in use, and operations waiting for one",
        ("host", "state"),
        lambda: _by_host(pools),
    )
    metrics.observed_counters(
        "pool_host_connections_created",
        "Connections opened to a host since it was last used for the first time",
        ("host",),
        lambda: {(host,): pool.created for host, pool in pools.statistics().items()},
    )


def _totals(pools: ConnectionPools) -> dict[str, float]:
    # An alert must see each state from its first connection on, although hosts come and go.
    statistics = pools.statistics().values()
    return {
        "available": sum(pool.available for pool in statistics),
        "in_use": sum(pool.in_use for pool in statistics),
        "waiting": sum(pool.waiting for pool in statistics),
    }


def _by_host(pools: ConnectionPools) -> dict[tuple[str, ...], float]:
    return {
        (host, state): number
        for host, pool in pools.statistics().items()
        for state, number in (("available", pool.available), ("in_use", pool.in_use), ("waiting", pool.waiting))
    }
