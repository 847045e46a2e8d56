"""What all nemeses have in common."""

import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tests.chaos.history import History
from tests.chaos.links import Links
from tests.chaos.stage import Shape, Stage
from tests.migration.fault_cluster import FaultCluster

PAIR_CHANCE: Final = 0.3
"""That a mongod and its daemon are harmed together."""


@dataclass
class Scene:
    """What nemeses harm.

    Attributes:
        stages: of all workloads.
        links: between daemons; None if the cluster has none.
        processes: held while processes are stopped or ended, so that none waits for a process that another has stopped.
    """

    cluster: FaultCluster
    shape: Shape
    history: History
    stages: list[Stage]
    links: Links | None = None
    processes: threading.Lock = field(default_factory=threading.Lock)


class Nemesis(ABC, threading.Thread):
    """A thread that does harm of one kind until it is asked to end; then it repairs everything.

    Attributes:
        kind: as ``--nemeses`` takes it.
        interval: seconds between two faults, at least and at most.
        counts: what it did, and how often.
    """

    kind: ClassVar[str]
    interval: ClassVar[tuple[float, float]] = (1.0, 4.0)

    def __init__(self, scene: Scene, seed: str) -> None:
        super().__init__(daemon=True, name=self.kind)
        self.scene = scene
        self.random = random.Random(f"{seed}/{self.kind}")
        self.counts: Counter[str] = Counter()
        self.is_stopping = threading.Event()

    @abstractmethod
    def harm(self) -> None:
        """One fault, which is over when this returns."""

    def stop(self) -> None:
        """End after the fault under way, and cut that short."""
        self.is_stopping.set()

    def run(self) -> None:
        """Do harm."""
        try:
            while not self.is_stopping.wait(self.random.uniform(*self.interval)):
                if self.scene.history.failed.is_set():
                    return
                self.harm()
        except BaseException as failure:
            told = "".join(traceback.format_exception(failure))
            self.scene.history.anomaly(f"{self.kind}: a process could not be harmed or healed: {told}")

    def count(self, what: str, **fields: object) -> None:
        """Count a fault, and write it down."""
        self.counts[what] += 1
        self.scene.history.add(what, **fields)

    def rest(self, seconds: float) -> None:
        """Let a fault last, or until the nemesis is to end."""
        self.is_stopping.wait(seconds)

    def some_processes(self) -> list[str]:
        """Any process; often together with the other half of its pair, a mongod before its daemon."""
        names = self.scene.cluster.names
        name = self.random.choice(names)
        place = name.rpartition(".")[0]
        if place == "router" or self.random.random() >= PAIR_CHANCE:
            return [name]
        return [other for other in names if other.rpartition(".")[0] == place]

    def duration(self) -> float:
        """How long a fault lasts: mostly moments, now and then half a minute."""
        draw = self.random.random()
        if draw < 0.6:
            return self.random.uniform(0.1, 2.0)
        return self.random.uniform(2.0, 10.0) if draw < 0.9 else self.random.uniform(10.0, 30.0)


def kind_of(process: str) -> str:
    """A process's place without its numbers: ``shard.mongod``, ``config.configd``, ``router``."""
    first, *_, last = process.split(".")
    return "router" if first == "router" else f"{first.rstrip('0123456789')}.{last}"


def elapsed_since(began: float) -> float:
    """Seconds, for the history."""
    return round(time.monotonic() - began, 3)
