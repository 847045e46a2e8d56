"""Metrics: counting, and the form that Prometheus reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.operation_metrics import (
    BUCKET_BOUNDS_SECONDS,
    FAULTS,
    INTERNAL_ERROR,
    OK,
    OTHER_OUTCOME,
    OUTCOMES_MAX,
    OperationMetrics,
)

durations = st.floats(min_value=0, max_value=100)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_operations_are_counted_by_command_and_outcome() -> None:
    metrics = Metrics("router", ["find", "insert"])
    metrics.operations.observe("find", OK, 0.002)
    metrics.operations.observe("find", "MaxTimeMSExpired", 0.5)
    metrics.operations.observe("dropTables; --", OK, 0.1)
    found = samples(metrics)
    name = "shardwright_router_operations_total"
    assert found[name, frozenset({("command", "find"), ("outcome", OK)})] == 1
    assert found[name, frozenset({("command", "find"), ("outcome", "MaxTimeMSExpired")})] == 1
    assert found[name, frozenset({("command", "unknown"), ("outcome", OK)})] == 1
    assert "dropTables" not in metrics.render().decode()
    histogram = "shardwright_router_operation_duration_seconds"
    assert found[f"{histogram}_count", frozenset({("command", "find")})] == 2
    assert found[f"{histogram}_sum", frozenset({("command", "find")})] == pytest.approx(0.502)
    assert found[f"{histogram}_bucket", frozenset({("command", "find"), ("le", "0.0025")})] == 1
    assert found[f"{histogram}_bucket", frozenset({("command", "find"), ("le", "+Inf")})] == 2


@given(st.lists(durations, max_size=30))
def test_every_duration_is_in_the_bucket_of_its_bound(seconds: list[float]) -> None:
    operations = OperationMetrics("x", ["find"])
    for duration in seconds:
        operations.observe("find", OK, duration)
    statistics = operations.statistics()
    if not seconds:
        assert statistics == {}
        return
    assert statistics["find"].count == statistics["find"].outcomes[OK] == len(seconds)
    for position, bound in enumerate(BUCKET_BOUNDS_SECONDS):
        assert sum(statistics["find"].buckets[: position + 1]) == sum(duration <= bound for duration in seconds)


def test_the_number_of_outcomes_is_limited() -> None:
    operations = OperationMetrics("x", ["find"])
    for number in range(500):
        operations.observe("find", f"Location{number}", 0.1)
    outcomes = operations.statistics()["find"].outcomes
    assert len(outcomes) == OUTCOMES_MAX + 1
    assert sum(outcomes.values()) == 500
    assert outcomes[OTHER_OUTCOME] == 500 - (OUTCOMES_MAX - 1)


def test_faults_are_counted_over_all_commands_from_the_start() -> None:
    metrics = Metrics("router", ["find", "insert"])
    faults = "shardwright_router_operation_faults_total"
    found = samples(metrics)
    assert {dict(labels)["outcome"] for name, labels in found if name == faults} == set(FAULTS)
    for number in range(OUTCOMES_MAX):
        metrics.operations.observe("find", f"Location{number}", 0.1)
    for command in ("find", "insert"):
        metrics.operations.observe(command, INTERNAL_ERROR, 0.1)
    found = samples(metrics)
    assert found[faults, frozenset({("outcome", INTERNAL_ERROR)})] == 2


def test_statistics_do_not_change_afterwards() -> None:
    operations = OperationMetrics("x", ["find"])
    operations.observe("find", OK, 0.1)
    before = operations.statistics()
    operations.observe("find", OK, 0.1)
    assert before["find"].outcomes == {OK: 1}
    assert operations.statistics()["find"].outcomes == {OK: 2}


def test_a_write_with_errors_has_an_outcome_but_is_not_a_failure_of_the_command() -> None:
    operations = OperationMetrics("x", ["insert"])
    operations.observe("insert", OK, 0.1)
    operations.observe("insert", "DuplicateKey", 0.1, has_write_errors=True)
    operations.observe("insert", "BadValue", 0.1)
    operations.observe_on("a", "insert", 0.002, 100, 30)
    statistics = operations.statistics()["insert"]
    assert statistics.outcomes == {OK: 2, "DuplicateKey": 1, "BadValue": 1}
    assert statistics.failures == 1


def test_operations_on_a_target_count_by_their_command_too() -> None:
    operations = OperationMetrics("x", ["find"])
    operations.observe("find", "MaxTimeMSExpired", 0.5)
    operations.observe_on("a", "find", 0.002, 100, 30)
    operations.observe_on("a", "unheardOf", 0.002, 10, 3)
    bucket = operations.observe_on("b", "find", 0.02, 1, 2)
    assert BUCKET_BOUNDS_SECONDS[bucket - 1] < 0.02 <= BUCKET_BOUNDS_SECONDS[bucket]
    statistics = operations.statistics()
    assert statistics["find"].outcomes == {OK: 2, "MaxTimeMSExpired": 1}
    assert statistics["find"].count == 3
    assert statistics["find"].seconds == pytest.approx(0.522)
    assert statistics["unknown"].count == 1
    on_targets = operations.on_targets()
    assert sum(on_targets["a"].buckets) == 2
    assert (on_targets["a"].bytes_sent, on_targets["a"].bytes_received) == (110, 33)
    assert sum(on_targets["b"].buckets) == 1


def test_counters_and_gauges_are_read_on_demand() -> None:
    metrics = Metrics("shardd", [])
    refreshes = metrics.counter("refreshes", "Refreshes of routing tables")
    stale = metrics.labelled_counter("stale_versions", "Stale versions answered", "kind", ("shard", "database"))
    connections = [1, 2, 3]
    metrics.gauge("connections_open", "Open connections", lambda: len(connections))
    metrics.observed_counter("connections_created", "Connections ever accepted", lambda: len(connections) + 5)
    metrics.labelled_gauge("pool_connections", "Pooled connections", "host", lambda: {"h:1": 4.0})
    refreshes.add()
    refreshes.add(2)
    stale.add("shard")
    stale.add("shard", 4)
    connections.pop()
    found = samples(metrics)
    assert found["shardwright_shardd_refreshes_total", frozenset()] == 3
    assert found["shardwright_shardd_stale_versions_total", frozenset({("kind", "shard")})] == 5
    assert found["shardwright_shardd_stale_versions_total", frozenset({("kind", "database")})] == 0
    assert found["shardwright_shardd_connections_open", frozenset()] == 2
    assert found["shardwright_shardd_connections_created_total", frozenset()] == 7
    assert found["shardwright_shardd_pool_connections", frozenset({("host", "h:1")})] == 4


def test_metrics_with_several_labels_are_read_on_demand() -> None:
    metrics = Metrics("router", [])
    metrics.gauges("pools", "Connections by host", ("host", "state"), lambda: {("h:1", "idle"): 3})
    metrics.observed_counters("created", "Connections opened to a host", ("host",), lambda: {("h:1",): 7})
    lag = metrics.histogram("lag_seconds", "Time by which timers fire late")
    metrics.histograms("shard_seconds", "Time until a shard replies", ("shard",), lambda: {("a",): lag})
    lag.observe(0.002)
    found = samples(metrics)
    assert found["shardwright_router_pools", frozenset({("host", "h:1"), ("state", "idle")})] == 3
    assert found["shardwright_router_created_total", frozenset({("host", "h:1")})] == 7
    assert found["shardwright_router_lag_seconds_bucket", frozenset({("le", "0.0025")})] == 1
    assert found["shardwright_router_lag_seconds_bucket", frozenset({("le", "0.001")})] == 0
    assert found["shardwright_router_shard_seconds_sum", frozenset({("shard", "a")})] == 0.002


def test_a_metric_name_can_be_used_once() -> None:
    metrics = Metrics("router", [])
    metrics.counter("refreshes", "Refreshes")
    with pytest.raises(ValueError, match="refreshes"):
        metrics.gauge("refreshes", "Refreshes", lambda: 0)


def test_two_daemons_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics("router", ["find"]), Metrics("router", ["find"])
    first.operations.observe("find", OK, 0.1)
    assert second.operations.statistics() == {}


def test_the_process_is_measured_too() -> None:
    assert samples(Metrics("router", []))["process_resident_memory_bytes", frozenset()] > 0
