"""The results as printed tables and as a JSON file."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.loadgen import Measurement

_RESULTS: Final = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Result:
    """A workload on some number of connections against one target, with the medians of all rounds.

    Attributes:
        rounds: the single measurements.
    """

    workload: str
    connections: int
    target: str
    rounds: tuple[Measurement, ...]

    @property
    def operations_per_second(self) -> float:
        """The median of the rates."""
        return median(each.operations_per_second for each in self.rounds)

    @property
    def p50(self) -> float:
        """The median of the p50s, in microseconds."""
        return median(each.p50 for each in self.rounds)

    @property
    def p95(self) -> float:
        """The median of the p95s, in microseconds."""
        return median(each.p95 for each in self.rounds)

    @property
    def p99(self) -> float:
        """The median of the p99s, in microseconds."""
        return median(each.p99 for each in self.rounds)

    @property
    def errors(self) -> int:
        """The number of failed operations in all rounds."""
        return sum(each.errors for each in self.rounds)

    @property
    def cpu_us(self) -> dict[str, float]:
        """Medians of the CPU time per operation, by process, in microseconds."""
        return {role: median(each.cpu_us[role] for each in self.rounds) for role in self.rounds[0].cpu_us}

    @property
    def passages(self) -> dict[str, float]:
        """Medians of the share of the requests that were served by passages, by process."""
        return {role: median(each.passages[role] for each in self.rounds) for role in self.rounds[0].passages}

    def to_document(self) -> dict[str, Any]:
        """Return the document for the results."""
        return {
            "workload": self.workload,
            "connections": self.connections,
            "target": self.target,
            "operations_per_second": self.operations_per_second,
            "p50_us": self.p50,
            "p95_us": self.p95,
            "p99_us": self.p99,
            "errors": self.errors,
            "cpu_us_per_operation": self.cpu_us,
            "passages": self.passages,
            "rounds": [each.to_document() for each in self.rounds],
        }


def table(title: str, results: Sequence[Result]) -> str:
    """Format the results of one workload for one number of connections: a line per target, compared with the first."""
    first = results[0]
    lines = [f"\n{title}, {first.connections} connection{'s' if first.connections > 1 else ''}"]
    lines.append(
        f"  {'':12} {'ops/s':>9} {'x':>5} {'p50 us':>9} {'x':>5} {'p95 us':>9} {'p99 us':>9}   CPU us per operation"
    )
    for result in results:
        cpu = ", ".join(f"{role} {microseconds:,.0f}" for role, microseconds in result.cpu_us.items())
        shares = ", ".join(f"{role} {share:.0%}" for role, share in result.passages.items())
        lines.append(
            f"  {result.target:12} {result.operations_per_second:9,.1f} "
            f"{result.operations_per_second / first.operations_per_second:5.2f} "
            f"{result.p50:9,.0f} {result.p50 / first.p50:5.2f} {result.p95:9,.0f} {result.p99:9,.0f}   {cpu}"
            + (f"   passages: {shares}" if shares else "")
            + (f"   {result.errors} ERRORS" if result.errors else "")
        )
    return "\n".join(lines)


def write_json(document: dict[str, Any]) -> Path:
    """Write all results of a run with a description of the machine, and return the file's path."""
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()}
    path.write_text(json.dumps({"machine": machine, "python": platform.python_version(), **document}, indent=1) + "\n")
    return path
