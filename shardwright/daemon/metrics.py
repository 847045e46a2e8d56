"""What a daemon measures about itself, in one registry that Prometheus reads.

Counters are plain integers that their owner adds to; gauges are functions that are asked when someone reads. Label
values have to be few and known: commands, outcomes, shards, never namespaces or values of users.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwright.daemon.operation_metrics import OperationMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Count ``amount`` more."""
        self.value += amount


class LabelledCounter:
    """Counters of the same kind, told apart by one label."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def add(self, label: str, amount: int = 1) -> None:
        """Count ``amount`` more for a label value."""
        self.values[label] = self.values.get(label, 0) + amount


class Metrics(Collector):
    """All metrics of one daemon.

    Args:
        component: ``router``, ``shardd`` or ``configd``; metric names begin with ``shardwright_<component>``.
        commands: the commands that operations are counted by.
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
        """A new counter; Prometheus sees ``<prefix>_<name>_total``."""
        counter = Counter()
        self.observed_counter(name, description, lambda: counter.value)
        return counter

    def observed_counter(self, name: str, description: str, read_value: Callable[[], float]) -> None:
        """A counter that is kept elsewhere, and asked for when the metrics are read."""
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: CounterMetricFamily(full_name, description, value=read_value()))

    def labelled_counter(self, name: str, description: str, label: str) -> LabelledCounter:
        """New counters with one label; Prometheus sees ``<prefix>_<name>_total{label=…}``."""
        counter = LabelledCounter()
        full_name = f"{self._prefix}_{name}"

        def read() -> Metric:
            family = CounterMetricFamily(full_name, description, labels=(label,))
            for value, count in counter.values.items():
                family.add_metric((value,), count)
            return family

        self._add(name, read)
        return counter

    def gauge(self, name: str, description: str, read_value: Callable[[], float]) -> None:
        """A gauge whose value is asked for when the metrics are read."""
        full_name = f"{self._prefix}_{name}"
        self._add(name, lambda: GaugeMetricFamily(full_name, description, value=read_value()))

    def labelled_gauge(
        self, name: str, description: str, label: str, read_values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Gauges by label value, all asked for at once when the metrics are read."""
        full_name = f"{self._prefix}_{name}"

        def read() -> Metric:
            family = GaugeMetricFamily(full_name, description, labels=(label,))
            for value, number in read_values().items():
                family.add_metric((value,), number)
            return family

        self._add(name, read)

    def collect(self) -> Iterator[Metric]:
        """All metrics of this daemon's own; called by the registry."""
        yield from self.operations.collect()
        for read in self._readers.values():
            yield read()

    def render(self) -> bytes:
        """Everything in Prometheus's text format, the process's own metrics included."""
        return generate_latest(self._registry)

    def _add(self, name: str, read: Callable[[], Metric]) -> None:
        if name in self._readers:
            raise ValueError(f"there is already a metric named {name}")
        self._readers[name] = read
