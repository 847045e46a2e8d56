"""A target of measurements: an address to send requests to, and the processes behind it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.workloads import MONGODB, Dialect

_CPUCLOCK_SCHED: Final = 2


@dataclass(frozen=True)
class Target:
    """A path to a mongod.

    Attributes:
        name: its name on the command line, in the table and in the results.
        address: ``host:port`` to send requests to.
        dialect: the names of its commands.
        processes: pids by description; processes of the same kind share a description.
    """

    name: str
    address: str
    dialect: Dialect = MONGODB
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU time that its processes have used so far, by description."""
        return {role: sum(map(cpu_seconds, pids)) for role, pids in self.processes.items()}


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used so far."""
    # As `clock_getcpuclockid` makes it: in nanoseconds, where /proc has hundredths of a second.
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
