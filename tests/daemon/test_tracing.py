"""The export of spans: options, a collector that is away or stands still, the end of the process, exemplars."""

import logging
import socket
import subprocess
import sys
import threading
from argparse import Namespace

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shardwright.daemon import tracing as tracing_module
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.operation_metrics import Exemplars, Histogram, note_exemplar
from shardwright.daemon.tracing import ENDPOINT_VARIABLE, Tracing, TracingOptions, exemplar_of
from shardwright.wire.trace_context import TraceContext
from tests.otlp_collector import Collector, serving

PARENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)


def options_of(endpoint: str | None, ratio: float = 0.0) -> TracingOptions | None:
    return TracingOptions.of(Namespace(otlp_endpoint=endpoint, trace_sample_ratio=ratio), "a:1")


def new_tracing(endpoint: str) -> Tracing:
    return Tracing("tested", TracingOptions(endpoint, "a:1"), Metrics("router", ["find"]).operations)


def test_tracing_is_off_unless_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    assert options_of(None) is None
    assert options_of("http://a:4318", 0.5) == TracingOptions("http://a:4318", "a:1", 0.5)
    with pytest.raises(ValueError, match="--trace-sample-ratio needs --otlp-endpoint"):
        options_of(None, 0.5)
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://b:4318")
    assert options_of(None) == TracingOptions("http://b:4318", "a:1")
    assert options_of("http://a:4318") == TracingOptions("http://a:4318", "a:1")


def test_without_the_extra_the_option_is_refused_and_the_variable_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_module, "find_spec", lambda _: None)
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://b:4318")
    assert options_of(None) is None
    with pytest.raises(ValueError, match=r"pip install 'shardwright\[otel\]'"):
        options_of("http://a:4318")


@pytest.mark.parametrize("daemon", ["router", "shardd", "configd"])
def test_a_daemon_without_tracing_does_not_import_the_sdk(daemon: str) -> None:
    code = f"import sys, shardwright.{daemon}.service; print([n for n in sys.modules if 'opentelemetry' in n])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


async def test_the_last_spans_are_sent_at_the_end() -> None:
    collector = Collector()
    with serving(collector) as url:
        tracing = new_tracing(url + "/")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tracing.run)
            span = tracing.begin("find a.b", {"db.namespace": "a"}, PARENT)
            span.request("find east", {}).end()
            span.end("BadValue", 2)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        request, operation = collector.of_trace(PARENT.trace_id, 2)
    assert request.parent_id == operation.span_id == span.span_id
    assert request.is_request
    assert not request.has_failed
    assert operation.parent_id == PARENT.span_id
    assert operation.has_failed
    assert operation.service == "tested"
    assert operation.attributes["db.response.status_code"] == "2"


async def test_a_collector_that_stands_still_delays_the_end_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing_module, "FLUSH_SECONDS", 0.3)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent, trio.fail_after(20):
        tracing = new_tracing(f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tracing.run)
            tracing.begin("find a.b", {}, PARENT).end()
            await trio.testing.wait_all_tasks_blocked()
            started = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started < 2
        # It draws random waits, which Hypothesis does not allow beside the tests that follow.
        for thread in threading.enumerate():
            if "OtelBatch" in thread.name:
                thread.join(20)
                assert not thread.is_alive()
    assert "Could not export the last spans in time" in caplog.text


def test_failures_are_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    collector = Collector()
    with serving(collector) as url:
        tracing = new_tracing(url)
        for status in (400, 400, 400, 200, 200, 400):
            collector.status = status
            tracing.begin("find a.b", {}, PARENT).end()
            tracing.flush()
        tracing.shut_down()
    assert collector.requests == 6
    assert [each.getMessage() for each in caplog.records] == [
        "Could not export spans; more failures are not logged",
        "Spans are exported again",
        "Could not export spans; more failures are not logged",
    ]


def test_exemplars_are_in_open_metrics_alone() -> None:
    metrics = Metrics("router", ["find"])
    metrics.operations.observe("find", "ok", 0.003)
    tracing = Tracing("tested", TracingOptions("http://127.0.0.1:1", "a:1"), metrics.operations)
    tracing.note_duration("find", 0.003, PARENT)
    tracing.shut_down()
    assert b"4bf92f" not in metrics.render()
    text = metrics.render_open_metrics().decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    samples = families["shardwright_router_operation_duration_seconds"].samples
    (sample,) = [each for each in samples if each.exemplar is not None]
    assert sample.labels["le"] == "0.005"
    assert sample.exemplar is not None
    assert sample.exemplar.labels == {"trace_id": PARENT.trace_id, "span_id": PARENT.span_id}
    assert sample.exemplar.value == 0.003


def test_histograms_kept_elsewhere_have_exemplars_by_their_label() -> None:
    metrics = Metrics("router", [])
    histogram = Histogram()
    exemplars: Exemplars = {}
    histogram.observe(0.003)
    metrics.histograms("lag_seconds", "Without labels", (), lambda: {(): histogram})
    metrics.histograms("request_seconds", "By shard", ("shard",), lambda: {("a",): histogram}, exemplars)
    note_exemplar(exemplars, "a", exemplar_of(PARENT, 0.003))
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.render_open_metrics().decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert [(each.name, each.labels, each.exemplar.value) for each in samples] == [
        ("shardwright_router_request_seconds_bucket", {"shard": "a", "le": "0.005"}, 0.003)
    ]
