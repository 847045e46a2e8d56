"""The cost of observing a cluster: point finds with key statistics, query shapes and traces on and off.

Key statistics and query shapes are switched by parameters of the same processes before each turn (`bench.turns`).
Tracing is an option at the start, so it is measured on clusters of its own. A control cluster without tracing shows the
error of comparing two clusters. Counters and histograms are always on; the CPU time of reading them is measured per
scrape.
"""

import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient

from bench.cluster import OurCluster
from bench.loadgen import BenchError
from bench.targets import cpu_seconds
from bench.turns import Contender, Cost, cluster_of_points, take_turns
from shardwright.deploy.mongod import connect

OFF: Final = "off"
KEYS: Final = "key statistics"
SHAPES: Final = "query shapes"
BOTH: Final = "key statistics and shapes"
CONTROL: Final = "off, another cluster"
NOT_SAMPLED: Final = "tracing, none sampled"
SAMPLED: Final = "tracing, 1 of 100 sampled"

_SWITCHED: Final = {OFF: (False, 0), KEYS: (True, 0), SHAPES: (False, 500), BOTH: (True, 500)}
"""The parameters ``keyStatistics`` and ``queryStatsShapesMax`` by contender."""

_RATIOS: Final = {CONTROL: None, NOT_SAMPLED: 0.0, SAMPLED: 0.01}
"""The share of traced operations by contender; None for a cluster without tracing."""

_FIND: Final = "point find"
_SCRAPES: Final = 20
_SCRAPE_INTERVAL_SECONDS: Final = 5.0
"""The interval at which a console reads all metrics, three times as often as Prometheus does by default."""

_COMMAND_SECONDS: Final = 60.0
_COLLECTOR: Final = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure_observing(
    mongod: str, directory: Path, *, rounds: int, seconds: float, cache_gb: float
) -> dict[str, list[dict[str, Any]]]:
    """Measure all contenders in turn, and print the results."""
    print("\npoint finds with the means of observation on and off, on one connection", flush=True)
    contenders: dict[str, Contender] = {}
    with ExitStack() as running:
        collector = running.enter_context(_collector())
        first, client = running.enter_context(cluster_of_points(mongod, directory / "switched", cache_gb=cache_gb))
        switch = running.enter_context(_switching(first))
        step = client.finding(in_session=False)
        for name in _SWITCHED:
            contenders[name] = Contender(client.target, step, switch(name))
        for number, (name, ratio) in enumerate(_RATIOS.items()):
            options = [] if ratio is None else _tracing_options(collector, ratio)
            starting = cluster_of_points(mongod, directory / f"other{number}", cache_gb=cache_gb, options=options)
            other, client = running.enter_context(starting)
            running.enter_context(_switching(other))(OFF)()
            contenders[name] = Contender(client.target, client.finding(in_session=False))
        slices = take_turns(contenders, rounds * seconds)
        costs = [Cost.of(name, _FIND, each, [] if name == OFF else slices[OFF]) for name, each in slices.items()]
        for cost in costs:
            print(f"  {cost.line(OFF)}", flush=True)
        scrapes = [_scrape_cost(first, role) for role in ("router", "shardd")]
    together = {cost.contender: cost for cost in costs}[BOTH]
    per_second = sum(each["cpuMillis"] for each in scrapes) / _SCRAPE_INTERVAL_SECONDS
    with_scrapes = sum(together.more_cpu_us.values()) + per_second * 1000 / together.per_second
    share = with_scrapes / sum(costs[0].cpu_us.values())
    for each in scrapes:
        print(f"  one scrape takes the {each['role']} {each['cpuMillis']:.1f} ms of CPU, for {each['bytes']:,} bytes")
    print(f"  {BOTH}, scraped every {_SCRAPE_INTERVAL_SECONDS:.0f} s: {share:+.1%} CPU per find")
    print(f"  load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    return {"costs": [asdict(cost) for cost in costs], "scrapes": scrapes}


def _tracing_options(collector: str, ratio: float) -> list[str]:
    traced = [f"--{role}-option=otlp-endpoint={collector}" for role in ("router", "shardd")]
    return [*traced, f"--router-option=trace-sample-ratio={ratio}"]


@contextmanager
def _switching(cluster: OurCluster) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Yield a function that returns a function for `Contender.prepare`, given the contender's name."""
    with (
        connect(cluster.address("router.0"), _COMMAND_SECONDS) as router,
        connect(cluster.address("shard0.0.shardd"), _COMMAND_SECONDS) as shardd,
    ):
        yield lambda name: lambda: _switch(router, shardd, *_SWITCHED[name])


def _switch(router: MongoClient[Any], shardd: MongoClient[Any], counts_keys: bool, shapes_max: int) -> None:
    router.admin.command("setParameter", 1, queryStatsShapesMax=shapes_max)
    shardd.admin.command("setParameter", 1, keyStatistics=counts_keys)


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector that forgets all spans, in a process of its own; yield its address."""
    with subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def _scrape_cost(cluster: OurCluster, role: str) -> dict[str, Any]:
    """Measure the CPU time of reading the metrics of a daemon once."""
    [pid] = cluster.pids(role)
    [address] = cluster.target.metrics[role]
    sizes = []
    before = cpu_seconds(pid)
    for _ in range(_SCRAPES):
        connection = http.client.HTTPConnection(address)
        try:
            connection.request("GET", "/metrics")
            reply = connection.getresponse()
            sizes.append(len(reply.read()))
        finally:
            connection.close()
        if reply.status != http.HTTPStatus.OK:
            raise BenchError(f"the metrics of the {role} cannot be read: {reply.status}")
    used = cpu_seconds(pid) - before
    return {"role": role, "cpuMillis": used / _SCRAPES * 1000, "bytes": max(sizes)}
