"""One run: a cluster, its clients, the mover and the nemesis, and what is left of them."""

import shutil
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.clients import ChaosClient
from tests.chaos.history import History
from tests.chaos.mover import Mover
from tests.chaos.nemesis import Nemesis
from tests.chaos.worlds import WORLDS, create_worlds
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.migration.invariants import check_collection

CLIENTS: Final = 8
END_SECONDS_MAX: Final = 120.0

SHARD_OPTIONS: Final = (
    *("--orphan-cleanup-delay", "1"),
    # A killed router leaves cursors behind, for which range deletions wait, and for these the next moves: not for the
    # usual ten minutes.
    *("--set-parameter", "cursorTimeoutMillis=10000", "--set-parameter", "clientCursorMonitorFrequencySecs=1"),
)

Document = dict[str, Any]


@dataclass
class Summary:
    """What a run has done and found.

    Attributes:
        seconds: how long clients worked.
        operations: how many operations of clients were answered.
        resent: how many commands clients had to send more than once.
        moves: how many moves were committed and answered.
        failed_moves: how many were not, by the error's name.
        changes: how many moves, splits and merges were tried.
        anomalies: what must not have been.
        kept: where history and logs are; None after a run without anomalies.
    """

    seed: str
    seconds: float = 0.0
    operations: int = 0
    resent: int = 0
    moves: int = 0
    failed_moves: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)
    kept: Path | None = None

    def __str__(self) -> str:
        lines = [
            f"chaos, seed {self.seed}: {self.seconds:.0f} s",
            f"  operations  {self.operations}, {self.resent} of their commands sent more than once",
            f"  moves       {self.moves} of {self.changes} changes; not moved: {_counted(self.failed_moves)}",
            f"  kills       {self.kills.total()}: {_counted(self.kills)}",
            f"  pauses      {self.pauses.total()}: {_counted(self.pauses)}",
            f"  anomalies   {len(self.anomalies)}",
            *(f"    {anomaly}" for anomaly in self.anomalies),
        ]
        return "\n".join([*lines, f"  kept in {self.kept}"] if self.kept else lines)


def run_chaos(directory: Path, *, seconds: float, seed: str, members: int = 1) -> Summary:
    """Run on a new cluster in ``directory``, which is removed unless something was wrong."""
    directory.mkdir(parents=True, exist_ok=True)
    history = History(directory / "history.jsonl")
    summary = Summary(seed)
    try:
        options = [*SHARD_OPTIONS, "--members", str(members)]
        with fault_cluster(directory / "cluster", *options) as cluster:
            _run_on(cluster, history, summary, seconds)
    finally:
        history.close()
        summary.anomalies = history.anomalies
    if summary.anomalies:
        summary.kept = directory
    else:
        shutil.rmtree(directory)
    return summary


def _run_on(cluster: FaultCluster, history: History, summary: Summary, seconds: float) -> None:
    create_worlds(cluster.router())
    addresses = cluster.router_addresses
    clients = [ChaosClient(number, addresses, history, summary.seed) for number in range(CLIENTS)]
    registers = []
    for client in clients:
        client.create_registers()
        registers += client.registers
    for client in clients:
        client.watch([register for register in registers if register not in client.registers])
    mover, nemesis = Mover(cluster, history, summary.seed), Nemesis(cluster, history, summary.seed)
    began = time.monotonic()
    with ExitStack() as ending:
        threads: list[ChaosClient | Mover | Nemesis] = [*clients, mover, nemesis]
        for thread in threads:
            thread.start()
            ending.callback(thread.join, END_SECONDS_MAX)
            ending.callback(thread.stop)
        history.failed.wait(seconds)
        # Faults end first: then clients and moves have to get through.
        nemesis.stop()
        nemesis.join(END_SECONDS_MAX)
    summary.seconds = time.monotonic() - began
    for thread in threads:
        if thread.is_alive():
            history.anomaly(f"{thread} has not ended within {END_SECONDS_MAX} s")
    summary.operations = sum(client.operations for client in clients)
    summary.resent = sum(client.resent for client in clients)
    summary.moves, summary.failed_moves, summary.changes = mover.moved, mover.failed, history.counts["change"]
    summary.kills, summary.pauses = nemesis.kills, nemesis.pauses
    if not history.anomalies:
        _check(cluster, history, clients)


def _check(cluster: FaultCluster, history: History, clients: list[ChaosClient]) -> None:
    """Compare all that is stored and all that routers show with what the clients know."""
    for world in WORLDS:
        model: dict[str, Document] = {}
        for client in clients:
            model.update(client.elements[world])
            model.update((each.document["_id"], each.document) for each in client.registers if each.world is world)
        try:
            check_collection(cluster, world.namespace, model)
        except AssertionError as anomaly:
            history.anomaly(f"in the end, {world.name}: {anomaly}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
