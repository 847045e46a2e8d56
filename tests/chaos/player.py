"""One client of a workload at work."""

import threading
import traceback

from tests.chaos.stage import StageClient
from tests.chaos.workloads.base import Workload


class Player(threading.Thread):
    """A thread that does steps until it is asked to end or anything in the run is wrong."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(daemon=True, name=f"{workload.name}/{number}")
        self.workload = workload
        stage = workload.stage
        self.client = StageClient(stage, number, f"{stage.seed}/{workload.name}/{number}")
        self._history = stage.history
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """End after the step under way."""
        self._is_stopping.set()

    def run(self) -> None:
        """Do steps."""
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
