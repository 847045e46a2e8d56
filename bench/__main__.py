"""``make bench``: measures everything in one run, side by side; see `bench.workloads` for what is sent.

The targets take turns in every round, so that whatever else the machine does meanwhile is shared by all of them.
"""

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.cluster import our_cluster
from bench.genuine import genuine_cluster
from bench.loadgen import BenchError, LoadGenerator
from bench.mongods import direct_mongod
from bench.plan import body_of
from bench.proxy import PROXY, tcp_proxy
from bench.report import Result, table, write_json
from bench.routing import measure_routing
from bench.targets import Target
from bench.workloads import WORKLOADS, Workload
from deploy.errors import DeployError
from deploy.mongod import find_mongod

TARGETS: Final = ("direct", "tcp proxy", "genuine", "shardwright")
ROUTING: Final = "routing"
CONNECTIONS: Final = (1, 16, 64)
_WARM_UP_SHARE: Final = 0.25
_SHOWN_CHARACTERS: Final = 500


def main() -> int:
    """Run the benchmarks; the return value is the exit status."""
    options = _options()
    try:
        document = run(options)
    except (BenchError, DeployError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"\nresults: {write_json(document)}")
    return 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make the measurements that were asked for.

    Raises:
        BenchError: one could not be made.
    """
    document: dict[str, Any] = {}
    workloads = [workload for workload in WORKLOADS if workload.name in options.only]
    if workloads:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory, ExitStack() as running:
            targets = _start(options, Path(directory), running)
            generator = LoadGenerator(Path(directory))
            results = list(_measure(options, workloads, targets, generator))
        document["results"] = [result.to_document() for result in results]
    if ROUTING in options.only:
        document[ROUTING] = measure_routing((10, 10_000) if options.quick else (10, 10_000, 1_000_000))
    return document


def _start(options: argparse.Namespace, directory: Path, running: ExitStack) -> list[Target]:
    mongod = find_mongod(options.mongod)
    cache_gb = options.cache_gb
    targets: dict[str, Target] = {}
    if "direct" in options.targets or "tcp proxy" in options.targets:
        print("starting a mongod")
        targets["direct"] = running.enter_context(direct_mongod(mongod, directory / "direct", cache_gb=cache_gb))
    if "tcp proxy" in options.targets:
        if PROXY is None:
            print("haproxy is not installed: no measurements through a TCP proxy")
        else:
            targets["tcp proxy"] = running.enter_context(tcp_proxy(targets["direct"], directory / "proxy"))
    if "genuine" in options.targets:
        print("starting a genuine cluster")
        targets["genuine"] = running.enter_context(genuine_cluster(mongod, directory / "genuine", cache_gb=cache_gb))
    if "shardwright" in options.targets:
        print("starting our cluster")
        cluster = running.enter_context(our_cluster(mongod, directory / "shardwright", cache_gb=cache_gb))
        targets["shardwright"] = cluster.target
    return [targets[name] for name in TARGETS if name in targets and name in options.targets]


def _measure(
    options: argparse.Namespace, workloads: Sequence[Workload], targets: Sequence[Target], generator: LoadGenerator
) -> Iterable[Result]:
    for workload in workloads:
        plans = {target.name: workload.requests(target.dialect) for target in targets}
        for target in targets:
            _check(workload, target, plans[target.name].frames[0].filled())
        warm_up = 0.0 if workload.is_long else options.seconds * _WARM_UP_SHARE
        for connections in options.connections:
            rounds = [
                [
                    generator.run(
                        target, plans[target.name], connections=connections, warm_up=warm_up, seconds=options.seconds
                    )
                    for target in targets
                ]
                for _ in range(options.rounds)
            ]
            results = [
                Result(workload.name, connections, target.name, measurements)
                for target, measurements in zip(targets, zip(*rounds, strict=True), strict=True)
            ]
            print(table(workload.title, results), flush=True)
            yield from results


def _check(workload: Workload, target: Target, frame: bytes) -> None:
    """Look at one reply in full; the load generator looks only whether all the others are as good as this one."""
    host, _, port = target.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as replies:
        connection.sendall(frame)
        header = replies.read(4)
        reply = body_of(header + replies.read(int.from_bytes(header, "little") - 4))
    if not reply.get("ok") or not workload.is_right(reply):
        raise BenchError(f"{target.name} answers {workload.name} wrongly: {str(reply)[:_SHOWN_CHARACTERS]}")


def _options() -> argparse.Namespace:
    names = [*(workload.name for workload in WORKLOADS), ROUTING]
    parser = argparse.ArgumentParser(prog="bench", description="Measure a cluster beside its peers.")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="WHAT", help=", ".join(names))
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--connections", nargs="+", type=int, default=list(CONNECTIONS), metavar="N")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default: 3, quick: 0.5)")
    parser.add_argument("--rounds", type=int, help="measurements of everything (default: 3, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="whether it works rather than how fast it is")
    parser.add_argument("--mongod", help="mongod to run")
    parser.add_argument("--cache-gb", type=float, default=0.5, help="WiredTiger cache of each mongod (default: 0.5)")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.5 if options.quick else 3.0)
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    sys.exit(main())
