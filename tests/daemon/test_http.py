"""The metrics and health endpoint, over memory streams and over a real socket."""

import json
from collections.abc import Callable
from http import HTTPStatus
from urllib.request import urlopen

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from trio.testing import MockClock, memory_stream_pair

from shardwright.daemon.http import IDLE_SECONDS_MAX, REQUEST_BYTES_MAX, HealthServer, serve_http
from shardwright.daemon.metrics import Metrics, measure_process
from shardwright.daemon.run import open_listeners
from shardwright.wire.tls import ProcessTls

Reason = Callable[[], str | None]


def server(not_ready_reason: Reason = lambda: None) -> HealthServer:
    return HealthServer(Metrics("router", ["find"]), not_ready_reason)


def converse(requests: list[bytes], *, health: HealthServer | None = None) -> bytes:
    """Everything that the server sends in response to these parts of a client's data."""

    async def main() -> bytes:
        ours, theirs = memory_stream_pair()
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon((health or server()).serve_stream, theirs)
            for request in requests:
                await ours.send_all(request)
            await ours.send_eof()
            async for data in ours:
                received += data
        return bytes(received)

    return trio.run(main)


def request(target: str, method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("target", "status"), [("/metrics", 200), ("/healthz", 200), ("/readyz", 200), ("/readyz?x=1", 200), ("/", 404)]
)
def test_a_path_has_its_status(target: str, status: int) -> None:
    assert converse([request(target)]).startswith(f"HTTP/1.1 {status} ".encode())


def test_metrics_are_prometheus_text() -> None:
    reply = converse([request("/metrics")])
    assert b"content-type: text/plain; version=0.0.4" in reply
    assert b"# TYPE shardwright_router_operations_total counter" in reply


def test_metrics_are_open_metrics_if_that_is_accepted() -> None:
    metrics = Metrics("router", ["find"])
    metrics.operations.observe("find", "ok", 0.002)
    measure_process(metrics, ProcessTls()).observe(0.1)
    accepted = (
        b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n"
    )
    reply = converse([accepted], health=HealthServer(metrics, lambda: None))
    assert b"content-type: application/openmetrics-text; version=1.0.0" in reply
    body = reply.partition(b"\r\n\r\n")[2].decode()
    assert body.endswith("# EOF\n")
    families = open_metrics_families(body)  # type: ignore[no-untyped-call]
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert samples["shardwright_router_operations_total"].value == 1


def test_readyz_says_why_not() -> None:
    reasons: list[str | None] = ["no primary", None]
    health = server(lambda: reasons[0])
    not_ready = health.respond(b"GET", b"/readyz")
    assert not_ready.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(not_ready.body) == {"status": "not ready", "reason": "no primary"}
    assert health.respond(b"GET", b"/healthz").status == HTTPStatus.OK
    reasons.pop(0)
    assert json.loads(health.respond(b"GET", b"/readyz").body) == {"status": "ready"}


def test_a_connection_is_reused() -> None:
    reply = converse([request("/healthz") + request("/readyz"), request("/nothing")])
    assert [line.split()[1] for line in reply.splitlines() if line.startswith(b"HTTP/1.1")] == [b"200", b"200", b"404"]


def test_a_request_may_arrive_byte_by_byte() -> None:
    whole = converse([request("/healthz")])
    assert b'{"status": "ok"}' in whole
    piecemeal = converse([request("/healthz")[position : position + 1] for position in range(len(request("/healthz")))])
    assert piecemeal == whole


def test_head_has_no_body() -> None:
    reply = converse([request("/healthz", "HEAD")])
    assert reply.startswith(b"HTTP/1.1 200")
    assert reply.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/metrics", "POST"), 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /" + b"x" * (2 * REQUEST_BYTES_MAX), 431),
    ],
)
def test_invalid_requests_are_refused(sent: bytes, status: int) -> None:
    assert converse([sent]).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_client_that_disconnects_without_a_request_gets_nothing() -> None:
    assert converse([]) == b""


def test_a_client_that_disconnects_during_a_request_gets_an_error() -> None:
    assert converse([b"GET /metr"]).startswith(b"HTTP/1.1 400")


def test_a_faulty_gauge_causes_only_an_internal_error() -> None:
    metrics = Metrics("router", [])
    broken: dict[str, float] = {}
    metrics.gauge("broken", "Fails", lambda: broken["missing"])
    reply = converse([request("/metrics") + request("/healthz")], health=HealthServer(metrics, lambda: None))
    assert [line.split()[1] for line in reply.splitlines() if line.startswith(b"HTTP/1.1")] == [b"500", b"200"]


def test_an_idle_connection_is_closed() -> None:
    async def main() -> float:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server().serve_stream, theirs)
            await ours.send_all(b"GET /healthz HTTP/1.1\r\n")
            assert await ours.receive_some() == b""
        return trio.current_time()

    clock = MockClock(autojump_threshold=0)
    started = clock.current_time()
    assert trio.run(main, clock=clock) - started == pytest.approx(IDLE_SECONDS_MAX)


def test_a_stock_client_reads_it_over_tcp() -> None:
    async def main() -> bytes:
        async with trio.open_nursery() as nursery:
            listeners = open_listeners(["127.0.0.1"], 0)
            nursery.start_soon(serve_http, server(), listeners)
            port = listeners[0].getsockname()[1]
            body = await trio.to_thread.run_sync(read, f"http://127.0.0.1:{port}/healthz")
            nursery.cancel_scope.cancel()
        return body

    def read(url: str) -> bytes:
        with urlopen(url, timeout=30) as response:
            return bytes(response.read())

    assert json.loads(trio.run(main)) == {"status": "ok"}
