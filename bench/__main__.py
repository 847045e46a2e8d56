"""``make bench``: measures all targets in one run; see `bench.workloads` for the requests.

The targets take turns in every round, so that other load on the machine affects all of them equally.
"""

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.access import measure_access
from bench.balancer_round import measure_balancer_round
from bench.change_streams import measure_change_streams
from bench.closed import measure_closed
from bench.cluster import OurCluster, our_cluster
from bench.evening import measure_evening
from bench.genuine import genuine_cluster
from bench.gossip import measure_gossip
from bench.load import insert_into
from bench.loadgen import BenchError, LoadGenerator
from bench.many_chunks import collection_name, create_collections
from bench.migration.run import DOCUMENTS, DOCUMENTS_QUICK, PARTS, measure_migrations
from bench.mongods import direct_mongod
from bench.move_primary import measure_move_primary
from bench.observing import measure_observing
from bench.plan import Plan, body_of
from bench.proxy import PROXY, tcp_proxy
from bench.report import Result, table, write_json
from bench.resharding import measure_resharding
from bench.routing import measure_routing
from bench.sync.run import measure_sync
from bench.targets import Target
from bench.tls import measure_tls
from bench.transactions import measure_transactions
from bench.workloads import MONGODB, POINT_FIND, WORKLOADS, Dialect, Workload, point_find
from shardwright.deploy.errors import DeployError
from shardwright.deploy.mongod import connect, find_mongod

TARGETS: Final = ("direct", "tcp proxy", "genuine", "shardwright")
MANY_CHUNKS: Final = "chunks"
STREAMS: Final = "streams"
TRANSACTIONS: Final = "transactions"
GOSSIP: Final = "gossip"
ACCESS: Final = "access"
ROUTING: Final = "routing"
MIGRATION: Final = "migration"
RESHARDING: Final = "resharding"
MOVE_PRIMARY: Final = "moveprimary"
EVENING: Final = "evening"
SECURED: Final = "tls"
CLOSED: Final = "closed"
OBSERVING: Final = "observing"
ROUNDS: Final = "rounds"
SYNC: Final = "sync"
CHUNKS: Final = (10, 10_000, 1_000_000)
CHUNKS_QUICK: Final = CHUNKS[:2]
CONNECTIONS: Final = (1, 16, 64)
_LOAD_SECONDS: Final = 600.0
_WARM_UP_SHARE: Final = 0.25
_SHOWN_CHARACTERS: Final = 500


def main() -> int:
    """Run the benchmarks and return the exit status."""
    options = _options()
    try:
        document = run(options)
    except (BenchError, DeployError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"\nresults: {write_json(document)}")
    return 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make the requested measurements."""
    document: dict[str, Any] = {}
    sizes = CHUNKS_QUICK if options.quick else CHUNKS
    workloads = [workload for workload in WORKLOADS if workload.name in options.only]
    if workloads or {MANY_CHUNKS, STREAMS, TRANSACTIONS} & set(options.only):
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory, ExitStack() as running:
            bench = Bench(options, Path(directory), running)
            results = list(bench.measure(workloads))
            if MANY_CHUNKS in options.only and bench.cluster is not None:
                results += bench.measure_many_chunks(bench.cluster, sizes)
            if STREAMS in options.only:
                document[STREAMS] = bench.measure_change_streams()
            if TRANSACTIONS in options.only:
                document[TRANSACTIONS] = bench.measure_transactions()
        document["results"] = [result.to_document() for result in results]
    if MIGRATION in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[MIGRATION] = measure_migrations(options, find_mongod(options.mongod), Path(directory))
    if RESHARDING in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[RESHARDING] = measure_resharding(options, find_mongod(options.mongod), Path(directory))
    if MOVE_PRIMARY in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[MOVE_PRIMARY] = measure_move_primary(options, find_mongod(options.mongod), Path(directory))
    if EVENING in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[EVENING] = measure_evening(options, find_mongod(options.mongod), Path(directory))
    if SYNC in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[SYNC] = measure_sync(options, find_mongod(options.mongod), Path(directory))
    if ROUNDS in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[ROUNDS] = measure_balancer_round(
                find_mongod(options.mongod), Path(directory), cache_gb=options.cache_gb, is_quick=options.quick
            )
    if GOSSIP in options.only:
        document[GOSSIP] = measure_gossip()
    if ACCESS in options.only:
        document[ACCESS] = measure_access()
    if CLOSED in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[CLOSED] = measure_closed(
                find_mongod(options.mongod),
                Path(directory),
                rounds=options.rounds,
                seconds=options.seconds,
                cache_gb=options.cache_gb,
            )
    if OBSERVING in options.only:
        with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
            document[OBSERVING] = measure_observing(
                find_mongod(options.mongod),
                Path(directory),
                rounds=options.rounds,
                seconds=options.seconds,
                cache_gb=options.cache_gb,
            )
    if SECURED in options.only:
        document[SECURED] = measure_tls()
    if ROUTING in options.only:
        document[ROUTING] = measure_routing(sizes)
    return document


class Bench:
    """The running targets and the measurements on them.

    Args:
        directory: for data and plans.
        running: the exit stack that stops everything at the end.

    Attributes:
        cluster: our cluster; None if it is not among the targets.
    """

    def __init__(self, options: argparse.Namespace, directory: Path, running: ExitStack) -> None:
        self._options = options
        self._directory = directory
        self._running = running
        self._generator = LoadGenerator(directory)
        self.cluster: OurCluster | None = None
        self._targets = self._start()

    def measure(self, workloads: Sequence[Workload]) -> Iterator[Result]:
        """Measure workloads on all targets."""
        for workload in workloads:
            self._load(workload)
            targets = [each for each in self._targets if workload.is_in_every_dialect or each.dialect == MONGODB]
            contenders = [(each, workload.requests(self._spoken(each.dialect))) for each in targets]
            yield from self._measure(workload, contenders)

    def _spoken(self, dialect: Dialect) -> Dialect:
        return replace(dialect, numbers_writes=dialect.numbers_writes and not self._options.unnumbered)

    def _load(self, workload: Workload) -> None:
        """Load the data that only this workload needs."""
        if workload.data is None:
            return
        collection, documents = workload.data
        for target in self._targets:
            with connect(target.address, _LOAD_SECONDS) as client:
                insert_into(client, target.dialect, collection, documents(self._options.quick))

    def measure_many_chunks(self, cluster: OurCluster, counts: Sequence[int]) -> Iterator[Result]:
        """Measure point finds through the router in collections with different numbers of chunks."""
        print("creating collections with many chunks")
        create_collections(cluster, counts)
        contenders = []
        for count in counts:
            workload = replace(POINT_FIND, plan=point_find(collection_name(count)))
            target = replace(cluster.target, name=f"{count:,}")
            contenders.append((target, workload.requests(MONGODB)))
        yield from self._measure(
            replace(POINT_FIND, name=MANY_CHUNKS, title="point find by number of chunks"), contenders
        )

    def measure_change_streams(self) -> list[dict[str, Any]]:
        """Measure the delay of change streams, on targets that drivers can use."""
        targets = [target for target in self._targets if target.dialect == MONGODB]
        return measure_change_streams(targets, rounds=self._options.rounds, seconds=self._options.seconds)

    def measure_transactions(self) -> list[dict[str, Any]]:
        """Measure transactions, on targets that drivers can use."""
        return measure_transactions(self._targets, rounds=self._options.rounds, seconds=self._options.seconds)

    def _measure(self, workload: Workload, contenders: Sequence[tuple[Target, Plan]]) -> Iterator[Result]:
        options = self._options
        for target, plan in contenders:
            _check(workload, target, plan.frames[0].filled())
        warm_up = 0.0 if workload.is_long else options.seconds * _WARM_UP_SHARE
        for connections in options.connections:
            rounds = [
                [
                    self._generator.run(target, plan, connections=connections, warm_up=warm_up, seconds=options.seconds)
                    for target, plan in contenders
                ]
                for _ in range(options.rounds)
            ]
            results = [
                Result(workload.name, connections, target.name, measurements)
                for (target, _), measurements in zip(contenders, zip(*rounds, strict=True), strict=True)
            ]
            print(table(workload.title, results), flush=True)
            yield from results

    def _start(self) -> list[Target]:
        wanted, directory, start = self._options.targets, self._directory, self._running.enter_context
        mongod = find_mongod(self._options.mongod)
        cache_gb = self._options.cache_gb
        targets: dict[str, Target] = {}
        if "direct" in wanted or "tcp proxy" in wanted:
            print("starting a mongod")
            targets["direct"] = start(direct_mongod(mongod, directory / "direct", cache_gb=cache_gb))
        if "tcp proxy" in wanted:
            if PROXY is None:
                print("haproxy is not installed: no measurements through a TCP proxy")
            else:
                targets["tcp proxy"] = start(tcp_proxy(targets["direct"], directory / "proxy"))
        if "genuine" in wanted:
            print("starting a genuine cluster")
            targets["genuine"] = start(genuine_cluster(mongod, directory / "genuine", cache_gb=cache_gb))
        if "shardwright" in wanted:
            print("starting our cluster")
            self.cluster = start(our_cluster(mongod, directory / "shardwright", cache_gb=cache_gb))
            targets["shardwright"] = self.cluster.target
        return [targets[name] for name in TARGETS if name in targets and name in wanted]


def _check(workload: Workload, target: Target, frame: bytes) -> None:
    """Check one reply completely; the load generator checks all others for errors only."""
    host, _, port = target.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as replies:
        connection.sendall(frame)
        header = replies.read(4)
        reply = body_of(header + replies.read(int.from_bytes(header, "little") - 4))
    if not reply.get("ok") or not workload.is_right(reply):
        raise BenchError(f"{target.name} gives a wrong reply to {workload.name}: {str(reply)[:_SHOWN_CHARACTERS]}")


def _options() -> argparse.Namespace:
    others = [MANY_CHUNKS, STREAMS, TRANSACTIONS, GOSSIP, ACCESS, ROUTING]
    others += [MIGRATION, RESHARDING, MOVE_PRIMARY, EVENING, SECURED, CLOSED, OBSERVING, ROUNDS, SYNC]
    names = [*(workload.name for workload in WORKLOADS), *others]
    parser = argparse.ArgumentParser(prog="bench", description="Compare a cluster with its peers.")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="WHAT", help=", ".join(names))
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--connections", nargs="+", type=int, default=list(CONNECTIONS), metavar="N")
    parser.add_argument("--seconds", type=float, help="duration of one measurement (default: 3, quick: 0.5)")
    parser.add_argument("--rounds", type=int, help="number of times everything is measured (default: 3, quick: 1)")
    parser.add_argument(
        "--documents",
        type=int,
        metavar="N",
        help=f"number of documents of 1 kB to move (default: {DOCUMENTS:,}, quick: {DOCUMENTS_QUICK:,})",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=f"which measurements of migrations to make: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--unnumbered",
        action="store_true",
        help="send no transaction numbers to any target, so that all targets do the same work as the genuine router",
    )
    parser.add_argument("--quick", action="store_true", help="check that everything works, not how fast it is")
    parser.add_argument("--mongod", help="mongod to run")
    parser.add_argument("--cache-gb", type=float, default=0.5, help="WiredTiger cache of each mongod (default: 0.5)")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.5 if options.quick else 3.0)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.documents = options.documents or (DOCUMENTS_QUICK if options.quick else DOCUMENTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
