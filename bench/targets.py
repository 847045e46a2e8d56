"""A target of measurements: an address to send requests to, and the processes behind it."""

import http.client
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.workloads import MONGODB, Dialect

_TAKEN: Final = re.compile(r'_passages_total\{outcome="taken"\} (\S+)')
_CPUCLOCK_SCHED: Final = 2


@dataclass(frozen=True)
class Target:
    """A path to a mongod.

    Attributes:
        name: its name on the command line, in the table and in the results.
        address: ``host:port`` to send requests to.
        processes: pids by description; processes of the same kind share a description.
        metrics: metrics addresses of processes with passages, by description.
    """

    name: str
    address: str
    dialect: Dialect = MONGODB
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time that its processes have used so far, by description."""
        return {role: sum(map(cpu_seconds, pids)) for role, pids in self.processes.items()}

    def requests_in_passages(self) -> dict[str, int]:
        """Return the number of requests that passages have served so far, by description."""
        return {role: sum(map(_requests_in_passages, addresses)) for role, addresses in self.metrics.items()}


def _requests_in_passages(address: str) -> int:
    connection = http.client.HTTPConnection(address)
    try:
        connection.request("GET", "/metrics")
        found = _TAKEN.search(connection.getresponse().read().decode())
    finally:
        connection.close()
    return 0 if found is None else int(float(found[1]))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    # The clock id that `clock_getcpuclockid` returns has nanoseconds, where /proc has hundredths of a second.
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
