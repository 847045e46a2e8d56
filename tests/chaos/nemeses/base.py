"""The base class of all nemeses."""

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
"""The probability that a mongod and its daemon fail together."""


@dataclass
class Scene:
    """The targets of nemeses.

    Attributes:
        stages: the stages of all workloads.
        links: the links between daemons; None if the cluster has none.
        processes: held while processes are paused or killed, so that no nemesis waits for a process paused by another.
    """

    cluster: FaultCluster
    shape: Shape
    history: History
    stages: list[Stage]
    links: Links | None = None
    processes: threading.Lock = field(default_factory=threading.Lock)


class Nemesis(ABC, threading.Thread):
    """A thread that causes one kind of fault until it is stopped; then it repairs everything.

    Attributes:
        kind: its name for ``--nemeses``.
        interval: minimum and maximum seconds between two faults.
        counts: the number of faults it caused, by kind.
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
        """Cause one fault, which is over when this returns."""

    def stop(self) -> None:
        """Cut the current fault short and end."""
        self.is_stopping.set()

    def run(self) -> None:
        """Cause faults until stopped."""
        try:
            while not self.is_stopping.wait(self.random.uniform(*self.interval)):
                if self.scene.history.failed.is_set():
                    return
                self.harm()
        except BaseException as failure:
            told = "".join(traceback.format_exception(failure))
            self.scene.history.anomaly(f"{self.kind}: a process could not be harmed or healed: {told}")

    def count(self, what: str, **fields: object) -> None:
        """Count and record a fault."""
        self.counts[what] += 1
        self.scene.history.add(what, **fields)

    def rest(self, seconds: float) -> None:
        """Wait while a fault lasts, or until the nemesis is stopped."""
        self.is_stopping.wait(seconds)

    def some_processes(self) -> list[str]:
        """A random process, often together with the other half of its pair; a mongod comes before its daemon."""
        names = self.scene.cluster.names
        name = self.random.choice(names)
        place = name.rpartition(".")[0]
        if place == "router" or self.random.random() >= PAIR_CHANCE:
            return [name]
        return [other for other in names if other.rpartition(".")[0] == place]

    def duration(self) -> float:
        """Draw the duration of a fault: mostly moments, sometimes half a minute."""
        draw = self.random.random()
        if draw < 0.6:
            return self.random.uniform(0.1, 2.0)
        return self.random.uniform(2.0, 10.0) if draw < 0.9 else self.random.uniform(10.0, 30.0)


def kind_of(process: str) -> str:
    """A process's name without its numbers: ``shard.mongod``, ``config.configd``, ``router``."""
    first, *_, last = process.split(".")
    return "router" if first == "router" else f"{first.rstrip('0123456789')}.{last}"


def elapsed_since(began: float) -> float:
    """Seconds, for the history."""
    return round(time.monotonic() - began, 3)
