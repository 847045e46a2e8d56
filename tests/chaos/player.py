"""A running client of a workload."""

import threading
import traceback

from tests.chaos.stage import StageClient
from tests.chaos.workloads.base import Workload


class Player(threading.Thread):
    """A thread that runs steps until it is stopped or there is an anomaly in the run."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(daemon=True, name=f"{workload.name}/{number}")
        self.workload = workload
        stage = workload.stage
        self.client = StageClient(stage, number, f"{stage.seed}/{workload.name}/{number}")
        self._history = stage.history
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """End after the current step."""
        self._is_stopping.set()

    def run(self) -> None:
        """Run steps."""
        try:
            self.client.begin()
            while not self._is_stopping.is_set() and not self._history.failed.is_set():
                self.workload.step(self.client)
                self.client.operations += 1
        except AssertionError as anomaly:
            self._history.anomaly(f"{self.name}: {anomaly}")
        except Exception as failure:
            self._history.anomaly(f"{self.name} failed: {''.join(traceback.format_exception(failure))}")
        finally:
            self.client.close()
