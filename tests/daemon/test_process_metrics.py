"""Metrics of the process: versions, the lag of the event loop, the expiry of the certificate."""

from datetime import UTC, datetime

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from shardwright.daemon.metrics import LAG_PAUSE_SECONDS, Metrics, measure_lag, measure_process
from shardwright.daemon.operation_metrics import Histogram
from shardwright.wire.tls import ProcessTls


def test_the_version_is_a_label() -> None:
    metrics = Metrics("router", [])
    measure_process(metrics, ProcessTls())
    assert 'shardwright_router_build_info{python="3.' in metrics.render().decode()
    assert 'version="' in metrics.render().decode()


def test_the_expiry_is_absent_without_a_certificate() -> None:
    metrics, tls = Metrics("router", []), ProcessTls()
    measure_process(metrics, tls)
    name = "\nshardwright_router_certificate_expiry_timestamp_seconds "
    assert name not in metrics.render().decode()
    tls.expires_at = datetime(2030, 1, 1, tzinfo=UTC)
    assert f"{name}1.893456e+09" in metrics.render().decode()


def test_what_blocks_the_event_loop_is_its_lag() -> None:
    histogram = Histogram()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure_lag, histogram)
            await trio.testing.wait_all_tasks_blocked()
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(LAG_PAUSE_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(LAG_PAUSE_SECONDS + 2)  # as if a callback had taken two seconds
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock())
    assert histogram.seconds == pytest.approx(2)
    assert sum(histogram.buckets) == 2
    assert histogram.buckets[0] == 1
