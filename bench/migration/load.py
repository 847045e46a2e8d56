"""The effect of a migration on clients: writes that wait for it, and reads that it slows down."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary, UuidRepresentation

from bench.loadgen import LoadGenerator, Measurement
from bench.migration.clusters import MovingCluster
from bench.migration.data import KEPT_DOCUMENTS
from bench.migration.rate import Move, move, prepare
from bench.plan import Plan, request
from bench.workloads import DATABASE, Dialect

CLIENTS: Final = 4

_FRAMES: Final = 5_000
_SEED: Final = 1
_SESSION: Final = {"id": Binary.from_uuid(UUID(int=_SEED), UuidRepresentation.STANDARD)}


@dataclass(frozen=True)
class LoadedMove:
    """A migration under load.

    Attributes:
        before: the load without a migration.
        during: the load during the whole migration.
    """

    before: Measurement
    during: Measurement
    move: Move

    @property
    def slowdown(self) -> float:
        """The share of the throughput that was lost."""
        return 1 - self.during.operations_per_second / self.before.operations_per_second

    def to_document(self) -> dict[str, Any]:
        """Return the document for the results."""
        return {
            "before": self.before.to_document(),
            "during": self.during.to_document(),
            "move": self.move.to_document(),
            "slowdown": self.slowdown,
        }


def writes(dialect: Dialect, collection: str, first: int, count: int) -> Plan:
    """Plan updates of single documents with keys in a range."""
    numbers = random.Random(_SEED)

    def update() -> dict[str, Any]:
        return {"q": {"key": numbers.randrange(first, first + count)}, "u": {"$inc": {"counter": 1}}}

    body = {dialect("update"): collection, "ordered": True, "lsid": _SESSION, "writeConcern": {"w": 1}, "$db": DATABASE}
    return Plan(tuple(request(body, {"updates": [update()]}) for _ in range(_FRAMES)))


def writes_beside(dialect: Dialect, collection: str, documents: int) -> Plan:
    """Plan updates of documents that stay: they need no transfer, but they wait for the commit too."""
    return writes(dialect, collection, documents, KEPT_DOCUMENTS)


def writes_within(dialect: Dialect, collection: str, documents: int) -> Plan:
    """Plan updates of the documents that move."""
    return writes(dialect, collection, 0, documents)


def reads(dialect: Dialect, collection: str, documents: int) -> Plan:
    """Plan finds of single documents that move."""
    numbers = random.Random(_SEED)
    common = {"limit": 1, "singleBatch": True, "lsid": _SESSION, "$db": DATABASE}
    return Plan(
        tuple(
            request({dialect("find"): collection, "filter": {"key": numbers.randrange(documents)}, **common})
            for _ in range(_FRAMES)
        )
    )


def move_under_load(
    generator: LoadGenerator,
    cluster: MovingCluster,
    collection: str,
    documents: int,
    plan: Plan,
    *,
    seconds: float,
    change: Callable[[MovingCluster, str, int], Move] = move,
) -> LoadedMove:
    """Apply a load to a cluster, first alone for some seconds, then while its documents move.

    Args:
        collection: the collection to create.
        documents: number of documents to move.
        seconds: duration of the load alone.
        change: moves the documents, given the first arguments; by default a range of them.
    """
    prepare(cluster, collection, documents)
    before = generator.run(cluster.target, plan, connections=CLIENTS, warm_up=seconds / 4, seconds=seconds)
    with generator.running(cluster.target, plan, connections=CLIENTS) as load:
        moved = change(cluster, collection, documents)
        # Operations that waited for the commit are answered within this time.
        time.sleep(min(1.0, seconds / 4))
        during = load.stop()
    return LoadedMove(before, during, moved)
