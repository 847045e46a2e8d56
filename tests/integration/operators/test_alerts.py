"""The shipped alerts: each of their series exists before anything has happened."""

import re
from collections.abc import Iterator
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.rules import rules, selectors
from tests.integration.health import http_get
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, running_cluster

_AFTER_EVENTS: Final = frozenset({"operations_total", "certificate_expiry_timestamp_seconds"})
"""Series that begin with an operation, or with TLS; the alerts on them are about rates, or about their presence."""

_PREFIX: Final = re.compile(r"shardwright_(router|shardd|configd)_(.*)")


@pytest.fixture(scope="module")
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("alerts"), "--shards", "1", "--members", "1") as running:
        yield running


def test_selectors_are_found_in_expressions() -> None:
    expression = (
        'rate({__name__=~"shardwright_(router|shardd)_x_total"}[5m]) > 0 or shardwright_configd_y{a="b|c"} == 0'
    )
    assert list(selectors(expression)) == [
        ("shardwright_router_x_total", {}),
        ("shardwright_shardd_x_total", {}),
        ("shardwright_configd_y", {"a": "b"}),
        ("shardwright_configd_y", {"a": "c"}),
    ]


def test_the_series_of_alerts_exist_at_the_start(new_cluster: RunningCluster) -> None:
    expected = {
        (name, tuple(labels.items()))
        for rule in rules("alerts.yml")
        for name, labels in selectors(rule["expr"])
        if (found := _PREFIX.fullmatch(name)) and found[2] not in _AFTER_EVENTS
    }
    names = {name for name, _ in expected}
    assert {"shardwright_router_internal_errors_total", "shardwright_configd_is_primary"} <= names

    def missing() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        samples = [
            (sample.name, sample.labels.items())
            for address in new_cluster.metrics.values()
            for family in text_string_to_metric_families(http_get(address, "/metrics")[1])
            for sample in family.samples
        ]
        return {
            (name, labels)
            for name, labels in expected
            if not any(name == found and set(labels) <= has for found, has in samples)
        }

    # What is read from mongods follows soon after the start.
    eventually(lambda: not missing() or None, what="all series exist")
    assert missing() == set()
