"""All measurements of migrations in one run, with the same data in a genuine cluster and in ours.

Both clusters run at the same time and take turns, so that other load on the machine affects both equally.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

from bench.loadgen import LoadGenerator
from bench.migration.clusters import MovingCluster, genuine_moving_cluster, our_moving_cluster
from bench.migration.data import DOCUMENT_BYTES
from bench.migration.load import LoadedMove, move_under_load, reads, writes_beside, writes_within
from bench.migration.rate import Move, move, prepare, raw_copy
from bench.migration.report import pause_table, rate_table, slowdown_table
from bench.plan import Plan
from bench.workloads import Dialect

RATE: Final = "rate"
IDLE: Final = "idle"
BUSY: Final = "busy"
READS: Final = "reads"
PARTS: Final = (RATE, IDLE, BUSY, READS)

RAW_COPY: Final = "raw copy"

DOCUMENTS: Final = 1_000_000
DOCUMENTS_QUICK: Final = 20_000
LOADED_DOCUMENTS_MAX: Final = 300_000
"""A migration under load moves fewer documents, because clients notice its commit, not its duration."""

_LOADS: Final[Mapping[str, tuple[str, Callable[[Dialect, str, int], Plan]]]] = {
    IDLE: ("updates beside the range", writes_beside),
    BUSY: ("updates within the range", writes_within),
    READS: ("point finds within the range", reads),
}


class _Start(Protocol):
    def __call__(self, mongod: str, directory: Path, *, cache_gb: float) -> AbstractContextManager[MovingCluster]: ...


_CLUSTERS: Final[Mapping[str, _Start]] = {"genuine": genuine_moving_cluster, "shardwright": our_moving_cluster}


def measure_migrations(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurements, print them as tables and return the document for the results."""
    documents, fewer = options.documents, min(options.documents, LOADED_DOCUMENTS_MAX)
    moves: dict[str, list[Move]] = {}
    loaded: dict[str, dict[str, LoadedMove]] = {part: {} for part in PARTS if part != RATE}
    generator = LoadGenerator(directory)
    with ExitStack() as running:
        clusters = {}
        for name in [name for name in _CLUSTERS if name in options.targets]:
            print(f"migrations: starting {name}", flush=True)
            start = _CLUSTERS[name](mongod, directory / f"moving-{name}", cache_gb=options.cache_gb)
            clusters[name] = running.enter_context(start)
        if RATE in options.parts:
            for number in range(options.rounds):
                for what, measured in _rates(clusters, f"moved{number}", documents):
                    moves.setdefault(what, []).append(measured)
            print(rate_table(documents, DOCUMENT_BYTES, moves), flush=True)
        for part in [part for part in loaded if part in options.parts]:
            title, plan_of = _LOADS[part]
            for name, cluster in clusters.items():
                plan = plan_of(cluster.target.dialect, part, fewer)
                loaded[part][name] = move_under_load(generator, cluster, part, fewer, plan, seconds=options.seconds)
            table = slowdown_table if part == READS else pause_table
            print(table(title, fewer, loaded[part]), flush=True)
    return {
        "documents": documents,
        "document_bytes": DOCUMENT_BYTES,
        RATE: {what: [each.to_document() for each in rounds] for what, rounds in moves.items()},
        **{part: {name: each.to_document() for name, each in by.items()} for part, by in loaded.items() if by},
    }


def _rates(clusters: Mapping[str, MovingCluster], collection: str, documents: int) -> Iterator[tuple[str, Move]]:
    """Run one round: a raw copy, then a move in each cluster, all of the same new documents."""
    for cluster in clusters.values():
        prepare(cluster, collection, documents)
    for cluster in list(clusters.values())[-1:]:
        yield RAW_COPY, raw_copy(cluster, collection, documents)
    for name, cluster in clusters.items():
        yield name, move(cluster, collection, documents)
