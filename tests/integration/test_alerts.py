"""The alerts that docs/operations.md recommends: each of their series exists before anything has happened."""

import re
from collections.abc import Iterator
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.health import http_get
from tests.local_cluster import RunningCluster, running_cluster
from tests.syntax import ROOT
from tests.test_metrics_rule import OF_ALL, documented

_METRIC: Final = re.compile(r'\b([a-z]+(?:_[a-z]+)+)(?:\{(\w+)=~?"([^"]*)"\})?')
_HISTOGRAMS: Final = frozenset({"operation_duration_seconds"})
"""Their percentiles are about operations that have ended, not about events."""


def watched() -> Iterator[tuple[str, dict[str, str]]]:
    """The series of the alerts: the metric without its prefix, and a label."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = page.partition("## Alerts to set")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (?!Alert when|---)(.*?) \| [^|]* \| [^|]* \|$", table, re.MULTILINE):
        for expression in re.findall(r"`([^`]*)`", row):
            for name, label, values in _METRIC.findall(expression):
                for value in values.split("\\|"):
                    yield name, {label: value} if label else {}


@pytest.fixture(scope="module")
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("alerts"), "--shards", "1", "--members", "1") as running:
        yield running


def test_the_series_of_alerts_exist_at_the_start(new_cluster: RunningCluster) -> None:
    owners = {name: owner for name, _, owner in documented()}
    expected = [each for each in watched() if each[0] not in _HISTOGRAMS]
    assert {"internal_errors_total", "donor_migrations_total", "is_primary"} <= {name for name, _ in expected}
    for process, address in new_cluster.metrics.items():
        kind = "router" if process.startswith("router") else process.rpartition(".")[2]
        families = text_string_to_metric_families(http_get(address, "/metrics")[1])
        found = [(sample.name, sample.labels) for family in families for sample in family.samples]
        for name, labels in expected:
            full = name if name.startswith("process_") else f"shardwright_{kind}_{name}"
            if full == name or owners[name] in (OF_ALL, kind):
                assert (full, labels) in found, f"{process} has no {full} {labels}"
