"""All measurements of migrations in one run: the same data in a genuine cluster and in ours, one after the other."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
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

DOCUMENTS: Final = 1_000_000
DOCUMENTS_QUICK: Final = 20_000
LOADED_DOCUMENTS_MAX: Final = 300_000
"""A migration under load moves fewer, since clients wait for its end and not for its length."""

_LOADS: Final[Mapping[str, tuple[str, Callable[[Dialect, str, int], Plan]]]] = {
    IDLE: ("updates beside the range", writes_beside),
    BUSY: ("updates within the range", writes_within),
    READS: ("point finds within the range", reads),
}


class _Start(Protocol):
    def __call__(self, mongod: str, directory: Path, *, cache_gb: float) -> AbstractContextManager[MovingCluster]: ...


_CLUSTERS: Final[Mapping[str, _Start]] = {"genuine": genuine_moving_cluster, "shardwright": our_moving_cluster}


def measure_migrations(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurements, print them as tables and return what goes into the results.

    Raises:
        BenchError: one could not be made.
    """
    moves: dict[str, list[Move]] = {}
    loaded: dict[str, dict[str, LoadedMove]] = {part: {} for part in PARTS if part != RATE}
    documents, fewer = options.documents, min(options.documents, LOADED_DOCUMENTS_MAX)
    generator = LoadGenerator(directory)
    for name in [name for name in _CLUSTERS if name in options.targets]:
        print(f"migrations: starting {name}", flush=True)
        with _CLUSTERS[name](mongod, directory / f"moving-{name}", cache_gb=options.cache_gb) as cluster:
            if RATE in options.parts:
                for what, measured in _rates(cluster, name, documents, options.rounds):
                    moves.setdefault(what, []).append(measured)
            for part in [part for part in loaded if part in options.parts]:
                plan = _LOADS[part][1](cluster.target.dialect, part, fewer)
                loaded[part][name] = move_under_load(generator, cluster, part, fewer, plan, seconds=options.seconds)
    _print(documents, fewer, moves, loaded)
    return {
        "documents": documents,
        "document_bytes": DOCUMENT_BYTES,
        RATE: {what: [each.to_document() for each in rounds] for what, rounds in moves.items()},
        **{part: {name: each.to_document() for name, each in by.items()} for part, by in loaded.items() if by},
    }


def _rates(cluster: MovingCluster, name: str, documents: int, rounds: int) -> Iterator[tuple[str, Move]]:
    for number in range(rounds):
        collection = f"moved{number}"
        prepare(cluster, collection, documents)
        yield f"raw copy ({name})", raw_copy(cluster, collection, documents)
        yield name, move(cluster, collection, documents)


def _print(
    documents: int, fewer: int, moves: Mapping[str, list[Move]], loaded: Mapping[str, Mapping[str, LoadedMove]]
) -> None:
    if moves:
        print(rate_table(documents, DOCUMENT_BYTES, moves))
    for part in (IDLE, BUSY):
        if loaded[part]:
            print(pause_table(_LOADS[part][0], fewer, loaded[part]))
    if loaded[READS]:
        print(slowdown_table(fewer, loaded[READS]))
