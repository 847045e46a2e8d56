"""Processes that are killed and paused without end, one at a time."""

import random
import threading
import time
import traceback
from collections import Counter
from typing import Final

from tests.chaos.history import History
from tests.migration.fault_cluster import FaultCluster

INTERVAL_SECONDS: Final = (1.0, 4.0)
"""From the end of one fault to the next."""

PAUSE_SECONDS: Final = (0.2, 4.0)
DOWN_SECONDS: Final = (0.0, 1.5)


class Nemesis(threading.Thread):
    """A thread that harms processes until it is told to end; then all run.

    Attributes:
        kills: how often a process was killed, by its kind.
        pauses: how often one was stopped and continued, by its kind.
    """

    def __init__(self, cluster: FaultCluster, history: History, seed: str) -> None:
        super().__init__(daemon=True)
        self.kills: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self._cluster = cluster
        self._history = history
        self._random = random.Random(f"{seed}/nemesis")
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """End after the fault under way."""
        self._is_stopping.set()

    def run(self) -> None:
        """Do harm."""
        try:
            while not self._is_stopping.wait(self._random.uniform(*INTERVAL_SECONDS)):
                if self._history.failed.is_set():
                    return
                self._harm(self._random.choice(self._cluster.names))
        except BaseException as failure:
            self._history.anomaly(f"a process could not be harmed or healed: {traceback.format_exception(failure)}")

    def _harm(self, name: str) -> None:
        kind = name.split(".")[0].rstrip("0123456789") + "." + name.split(".")[-1]
        kind = "router" if name.startswith("router") else kind
        is_pause, lasts = self._random.random() < 0.4, self._random.random()
        if is_pause:
            self._history.add("pause", process=name)
            with self._cluster.paused(name):
                time.sleep(_between(PAUSE_SECONDS, lasts))
            self._history.add("continue", process=name)
            self.pauses[kind] += 1
            return
        self._history.add("kill", process=name)
        self._cluster.kill(name)
        time.sleep(_between(DOWN_SECONDS, lasts))
        self._cluster.restart(name)
        self._history.add("restart", process=name)
        self.kills[kind] += 1


def _between(bounds: tuple[float, float], fraction: float) -> float:
    return bounds[0] + fraction * (bounds[1] - bounds[0])
