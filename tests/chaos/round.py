"""One round: workloads with a database each, nemeses, and the checks after all of them have ended."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pymongo.errors import PyMongoError

from tests.chaos.catalog_view import read_catalog
from tests.chaos.checkers.catalog import check_catalog
from tests.chaos.checkers.logs import check_daemon_log, check_mongod_log
from tests.chaos.history import History
from tests.chaos.links import Links
from tests.chaos.nemeses import NEMESES, Nemesis, Scene
from tests.chaos.nemeses.moves import Moves
from tests.chaos.operations import as_json_lines
from tests.chaos.plan import Plan
from tests.chaos.player import Player
from tests.chaos.stage import Stage
from tests.chaos.summary import Summary
from tests.chaos.workloads import WORKLOADS
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import wait_clean

END_SECONDS_MAX: Final = 180.0
CATALOG_SECONDS_MAX: Final = 60.0


class Round:
    """See the module.

    Attributes:
        workloads: the workloads with their stages.
    """

    def __init__(self, cluster: FaultCluster, links: Links | None, plan: Plan, number: int, history: History) -> None:
        self._cluster = cluster
        self._history = history
        names, kinds = plan.round(number)
        self.name = f"round {number}: {', '.join(names)} under {', '.join(kinds)}"
        seed = f"{plan.seed}/{number}"
        self.workloads = [
            WORKLOADS[name](Stage(cluster, plan.shape, f"chaos{number}_{name}", seed, history)) for name in names
        ]
        scene = Scene(cluster, plan.shape, history, [workload.stage for workload in self.workloads], links)
        self._nemeses: list[Nemesis] = [NEMESES[kind](scene, seed) for kind in kinds]
        self._players = [Player(workload, n) for workload in self.workloads for n in range(workload.clients)]

    def run(self, seconds: float, summary: Summary) -> None:
        """Run for some seconds, repair everything, and check."""
        self._history.add("round", name=self.name)
        for workload in self.workloads:
            workload.set_up()
        began = time.monotonic()
        for thread in (*self._players, *self._nemeses):
            thread.start()
        self._history.failed.wait(seconds)
        # Faults end first: then clients and moves have to get through.
        moves = [nemesis for nemesis in self._nemeses if isinstance(nemesis, Moves)]
        self._end([nemesis for nemesis in self._nemeses if nemesis not in moves])
        self._end(self._players)
        self._end(moves)
        summary.seconds += time.monotonic() - began
        summary.add(self._players, self._nemeses)
        if not self._history.anomalies:
            self._check()
        self._check_logs()

    def recorded(self) -> dict[str, str]:
        """The clients' operations as JSON lines, by workload."""
        return {workload.name: as_json_lines(workload.stage.recorder.operations) for workload in self.workloads}

    def _end(self, threads: Sequence[Player | Nemesis]) -> None:
        for thread in threads:
            thread.stop()
        deadline = time.monotonic() + END_SECONDS_MAX
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._history.anomaly(f"{thread.name} has not ended within {END_SECONDS_MAX:.0f} s")

    def _check(self) -> None:
        self._wait_writable()
        for workload in self.workloads:
            for anomaly in workload.check():
                self._history.anomaly(f"{workload.name}: {anomaly}")
        self._check_catalog()
        if not self._history.anomalies:
            for workload in self.workloads:
                workload.stage.admin.drop_database(workload.stage.database)
            self._check_catalog()

    def _check_logs(self) -> None:
        """Check the logs of all rounds so far, which is fast enough."""
        for process in self._cluster.names:
            check = check_mongod_log if process.endswith(".mongod") else check_daemon_log
            for anomaly in check(process, self._cluster.running.log(process).splitlines()):
                self._history.anomaly(anomaly)

    def _wait_writable(self) -> None:
        """Wait until every router finds a primary of each shard."""
        for shard in self._cluster.running.shards:
            self._cluster.primary_index(shard)

        def can_write() -> bool:
            with suppress(PyMongoError):
                for index in range(len(self._cluster.router_addresses)):
                    router = self._cluster.router(index)
                    for workload in self.workloads:
                        router[workload.stage.database]["probe"].insert_one({})
                        router[workload.stage.database].drop_collection("probe")
                return True
            return False

        eventually(can_write, within=CATALOG_SECONDS_MAX, what="all routers write")

    def _check_catalog(self) -> None:
        """Wait for operations in progress to complete; then everything must be consistent."""
        databases = [workload.stage.database for workload in self.workloads]
        router = self.workloads[0].stage.admin
        wait_clean(self._cluster)
        deadline = time.monotonic() + CATALOG_SECONDS_MAX
        while anomalies := check_catalog(read_catalog(self._cluster, router, databases)):
            if time.monotonic() > deadline:
                for anomaly in anomalies:
                    self._history.anomaly(f"catalog: {anomaly}")
                return
            time.sleep(0.5)
