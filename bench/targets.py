"""A target of measurements: an address to send requests to, and the processes behind it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.workloads import MONGODB, Dialect

_SECONDS_PER_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")


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
    # The command name, in parentheses, may itself contain spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _SECONDS_PER_TICK
