"""Reading the metrics of processes that are frozen, gone, or not daemons at all."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest

from shardwright.console.metrics import Sampler, Scrape
from shardwright.console.settings import Target
from shardwright.deploy.status import fetch

COUNT: Final = "shardwright_router_operations_total"


class Pages:
    """A metrics server. The path's first part selects a text, or a function that sends the reply itself."""

    def __init__(self, respond: Callable[[BaseHTTPRequestHandler], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                respond(self)

            def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as in the base class
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def send(handler: BaseHTTPRequestHandler, text: str) -> None:
    body = text.encode()
    handler.send_response(200)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def router() -> Iterator[str]:
    """The address of a router with a hundred operations per second."""
    started = time.monotonic()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        send(handler, f'{COUNT}{{command="find",outcome="ok"}} {(time.monotonic() - started) * 100}\n')

    pages = Pages(respond)
    yield pages.address
    pages.close()


@pytest.fixture
def frozen() -> Iterator[str]:
    """The address of a process that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("address", ["a..b:9100", "[::1:9100", f"{'x' * 70}:9100", "a b:1", "a:x", ""])
def test_an_odd_address_is_silent_and_others_are_still_read(router: str, address: str) -> None:
    sampler = Sampler([Target("odd", address, "shardd"), Target("router.0", router, "router")], 0.1)

    async def run() -> None:
        async with asyncio.timeout(10):
            reading = asyncio.create_task(sampler.run())
            while len(sampler.points) < 2:
                assert not reading.done()
                await asyncio.sleep(0.05)
            reading.cancel()

    asyncio.run(run())
    assert sampler.silent == {"odd"}


def test_a_page_that_is_not_metrics_is_silent(router: str) -> None:
    odd = Pages(lambda handler: send(handler, f"{COUNT} many\n"))
    sampler = Sampler([Target("odd", odd.address, "router"), Target("router.0", router, "router")], 1)
    asyncio.run(sampler.sample())
    odd.close()
    assert sampler.silent == {"odd"}
    assert sampler.latest is not None
    assert set(sampler.latest.samples) == {"router.0"}


def test_sampling_continues_after_a_scrape_that_cannot_be_evaluated() -> None:
    pages = Pages(lambda handler: send(handler, 'shardwright_router_operation_duration_seconds_bucket{le="x"} 1\n'))
    sampler = Sampler([Target("odd", pages.address, "router")], 0.05)

    async def run() -> None:
        reading = asyncio.create_task(sampler.run())
        await asyncio.sleep(0.5)
        assert not reading.done()
        reading.cancel()

    asyncio.run(run())
    pages.close()


def test_a_page_has_one_deadline(router: str) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        for _ in range(20):
            try:
                handler.wfile.write(b"#")
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(0.5)

    slow = Pages(drip)
    sampler = Sampler([Target("slow", slow.address, "shardd"), Target("router.0", router, "router")], 1)
    began = time.monotonic()
    asyncio.run(sampler.sample())
    assert time.monotonic() - began < 5
    assert sampler.silent == {"slow"}
    slow.close()


def test_frozen_processes_leave_the_executor_of_others_free(frozen: str) -> None:
    sampler = Sampler([Target(f"p{number}", frozen, "shardd") for number in range(40)], 5.0)

    async def run() -> float:
        reading = asyncio.create_task(sampler.run())
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await asyncio.to_thread(lambda: None)
        waited = time.monotonic() - began
        reading.cancel()
        return waited

    assert asyncio.run(run()) < 1


def test_a_frozen_process_does_not_change_the_rates_of_others(router: str, frozen: str) -> None:
    gone = Target("shard0", "127.0.0.1:1", "shardd")
    sampler = Sampler([Target("router.0", router, "router"), gone], 2.5)

    async def run() -> None:
        await sampler.sample()
        await asyncio.sleep(0.5)
        sampler.targets = [sampler.targets[0], Target("shard0", frozen, "shardd")]
        await sampler.sample()
        sampler.targets = [sampler.targets[0], gone]
        await asyncio.sleep(0.5)
        await sampler.sample()

    asyncio.run(run())
    assert [point.total["rate"] for point in sampler.points] == pytest.approx([100, 100], rel=0.1)


def test_top_reads_all_processes_at_once_with_the_time_of_each_page(router: str, frozen: str) -> None:
    began = time.monotonic()
    found = fetch({"shard0": frozen, "shard1": frozen, "shard2": frozen, "router.0": router})
    assert time.monotonic() - began < 4
    assert found.silent == ("shard0", "shard1", "shard2")
    assert found.scrape.time_of("router.0") - began < 1
    assert isinstance(found.scrape, Scrape)
