"""Names, units and help texts of metrics, and the table of docs/daemon.md that lists them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from tests.syntax import HOUSE, ROOT
from tests.test_layout import PACKAGES, sources

KINDS: Final = {
    "counter": "counter",
    "observed_counter": "counter",
    "observed_counters": "counter",
    "labelled_counter": "counter",
    "gauge": "gauge",
    "labelled_gauge": "gauge",
    "gauges": "gauge",
    "histogram": "histogram",
    "histograms": "histogram",
    "CounterMetricFamily": "counter",
    "HistogramMetricFamily": "histogram",
}
"""Functions that make a metric, with its kind."""

OF_ALL: Final = "daemon"
"""The package whose metrics all daemons have."""

SIDECARS: Final = "sidecars"
"""Owner of the metrics that shard and config daemons have in common."""

NOT_SECONDS: Final = re.compile(r"(^|_)(ms|millis|milliseconds|micros|us|minutes|hours|time|duration)$")


@dataclass(frozen=True, order=True)
class Metric:
    """A metric as its definition has it.

    Attributes:
        name: as Prometheus sees it, without the daemon's prefix.
        kind: ``counter``, ``gauge`` or ``histogram``.
        owner: the package that defines it.
        help: what ``/metrics`` says of it.
    """

    name: str
    kind: str
    owner: str
    help: str

    def faults(self) -> Iterator[str]:
        """Yield the faults of the metric."""
        stem = self.name.removesuffix("_total")
        if not re.fullmatch(r"[a-z]+(_[a-z]+)*", self.name):
            yield f"{self.name} is not in snake case"
        if (self.kind == "counter") != self.name.endswith("_total") or stem.endswith("_total"):
            yield f"{self.name} is a {self.kind}"
        if NOT_SECONDS.search(stem):
            yield f"{self.name} is not in seconds, or does not say so"
        if self.help.startswith("Time ") != stem.endswith("_seconds"):
            yield f"{self.name} is a time or it is not: {self.help}"
        if not re.fullmatch(r"[A-Z0-9][^\n]*[^.\s]", self.help) or len(self.help.split()) < 3:
            yield f"the help of {self.name} is not a sentence without a full stop: {self.help}"


def made(tree: ast.AST, owner: str) -> Iterator[Metric]:
    """The metrics that a module makes."""
    aliases = {"gauge": "gauge", "count": "observed_counter"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        kind = KINDS.get(aliases.get(called, called))
        name, text = map(_text, node.args[:2])
        if kind is not None and name is not None and text is not None:
            yield Metric(f"{name}_total" if kind == "counter" else name, kind, owner, text)


def _text(node: ast.expr) -> str | None:
    """A constant, or what an f-string has after its prefix."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(text))]):
            return text.removeprefix("_")
    return None


def owner_of(path: Path) -> str:
    """Return the package of a module, or ``sidecars`` for metrics that shard and config daemons share."""
    package, room, *_ = (*path.relative_to(HOUSE).parts, "")
    return SIDECARS if (package, room) == ("daemon", "sidecar") else package


METRICS: Final = sorted(
    metric
    for package in PACKAGES
    if package != "deploy"  # which reads metrics
    for path in sources(package)
    for metric in made(ast.parse(path.read_text(encoding="utf-8")), owner_of(path))
)


def documented() -> Iterator[tuple[str, str, str]]:
    """Name, kind and owner of each metric in the table."""
    page = (ROOT / "docs/daemon.md").read_text(encoding="utf-8")
    for names, kinds, owner in re.findall(r"^\| (`[a-z].*) \| ([a-z, ]+) \| (\w+) \|$", page, re.MULTILINE):
        listed = re.findall(r"`(\w+)(?:\{[a-z,]+\})?`", names)
        for name, kind in zip(listed, cycle(kinds.split(", ")), strict=False):
            yield name, kind, OF_ALL if owner == "all" else owner


def test_names_units_and_help_follow_the_rule() -> None:
    assert [fault for metric in METRICS for fault in metric.faults()] == []


def test_the_table_of_the_docs_has_them_all() -> None:
    assert sorted(documented()) == sorted((each.name, each.kind, each.owner) for each in METRICS)


@pytest.mark.parametrize(
    "call",
    [
        'metrics.gauge("refreshes_total", "Refreshes of routing tables", read)',
        'metrics.counter("refreshes_total", "Refreshes of routing tables")',
        'metrics.counter("critical_section_ms", "Time in critical sections")',
        'metrics.gauge("critical_section", "Time in critical sections", read)',
        'metrics.gauge("critical_section_time", "Length of critical sections", read)',
        'metrics.gauge("refresh_seconds", "Refreshes of routing tables", read)',
        'metrics.counter("refreshes", "")',
        'metrics.counter("refreshes", "Refreshes")',
        'metrics.counter("refreshes", "refreshes of routing tables.")',
    ],
)
def test_a_fault_is_found(call: str) -> None:
    (metric,) = made(ast.parse(call), "router")
    assert list(metric.faults())
