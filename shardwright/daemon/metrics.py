"""A daemon's metrics, in one registry that Prometheus reads.

Counters are plain numbers that their owner increments; gauges are functions called when metrics are read. Label values
must be few and known: commands, outcomes, shards, never namespaces or users' values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwright.daemon.operation_metrics import OperationMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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

    All of them exist from the start: Prometheus's ``increase`` and ``rate`` do not see the first event of a series
    that begins with it.

    Args:
        labels: all values of the label.
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

    Attributes:
        operations: counts operations.
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
        """Create counters with one label, exported as ``<prefix>_<name>_total{label=…}``.

        Args:
            description: the help text.
            label: the name of the label.
            labels: all its values.
        """
        counter = LabelledCounter(labels)
        full_name = f"{self._prefix}_{name}"

        def read() -> Metric:
            family = CounterMetricFamily(full_name, description, labels=(label,))
            for value, count in counter.values.items():
                family.add_metric((value,), count)
            return family

        self._add(name, read)
        return counter

    def gauge(self, name: str, description: str, read_value: Callable[[], float]) -> None:
        """Export a gauge whose value is read when metrics are read."""
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: GaugeMetricFamily(full_name, description, value=read_value()))

    def labelled_gauge(
        self, name: str, description: str, label: str, read_values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Export gauges by label value, all read with one call when metrics are read."""
        full_name = f"{self._prefix}_{name}"

        def read() -> Metric:
            family = GaugeMetricFamily(full_name, description, labels=(label,))
            for value, number in read_values().items():
                family.add_metric((value,), number)
            return family

        self._add(name, read)

    def collect(self) -> Iterator[Metric]:
        """The daemon's own metrics; called by the registry."""
        yield from self.operations.collect()
        for read in self._readers.values():
            yield read()

    def render(self) -> bytes:
        """All metrics in Prometheus's text format, including those of the process."""
        return generate_latest(self._registry)

    def _add(self, name: str, read: Callable[[], Metric]) -> None:
        if name in self._readers:
            raise ValueError(f"there is already a metric named {name}")
        self._readers[name] = read
