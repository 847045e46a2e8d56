"""Running the load generator, which is compiled on first use."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.plan import Plan
from bench.targets import Target

_SOURCE: Final = Path(__file__).with_name("loadgen.c")
_BUILD: Final = Path(__file__).parent.parent / "build"


SECONDS_MAX: Final = 86_400.0
"""The duration of a load that is stopped when something else ends."""


class BenchError(Exception):
    """A measurement failed; the message has the reason."""


@dataclass(frozen=True)
class Measurement:
    """One run of a workload against a target.

    Attributes:
        operations_per_second: on all connections together.
        p50, p95, p99, max: durations of operations, in microseconds.
        errors: replies that reported a failure.
        cpu_us: CPU time per operation of each of the target's processes, and of the load generator.
        passages: the share of the requests that passages served, by kind of daemon.
    """

    operations_per_second: float
    p50: float
    p95: float
    p99: float
    max: float
    errors: int
    cpu_us: dict[str, float]
    passages: dict[str, float]

    def to_document(self) -> dict[str, Any]:
        """Return the document for the results."""
        return asdict(self)


class LoadGenerator:
    """The compiled load generator.

    Args:
        directory: for its plans.
    """

    def __init__(self, directory: Path) -> None:
        self._plan = directory / "plan"
        _BUILD.mkdir(exist_ok=True)
        self._binary = _BUILD / "loadgen"
        command = ["cc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", str(self._binary), str(_SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise BenchError("a C compiler (cc) is needed to build the load generator") from None
        except subprocess.CalledProcessError as error:
            raise BenchError(f"the load generator could not be compiled: {error.stderr}") from error

    def run(self, target: Target, plan: Plan, *, connections: int, warm_up: float, seconds: float) -> Measurement:
        """Send the plan's requests to the target."""
        with self.running(target, plan, connections=connections, warm_up=warm_up, seconds=seconds) as load:
            return load.wait()

    @contextmanager
    def running(
        self, target: Target, plan: Plan, *, connections: int, warm_up: float = 0.0, seconds: float = SECONDS_MAX
    ) -> Iterator["RunningLoad"]:
        """Send the plan's requests to the target while the block runs, or until the time is over."""
        plan.write(self._plan)
        host, _, port = target.address.rpartition(":")
        before = target.cpu_seconds(), target.requests_in_passages()
        arguments = [str(self._binary), host, port, str(self._plan), str(connections), str(warm_up), str(seconds)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield RunningLoad(target, process, *before)
            finally:
                process.kill()


class RunningLoad:
    """A running load generator.

    Args:
        cpu_before: CPU seconds of the target's processes at the start.
        passages_before: requests served by passages before the start.
    """

    def __init__(
        self,
        target: Target,
        process: subprocess.Popen[str],
        cpu_before: dict[str, float],
        passages_before: dict[str, int],
    ) -> None:
        self._target = target
        self._process = process
        self._cpu_before = cpu_before
        self._passages_before = passages_before

    def stop(self) -> Measurement:
        """Stop it now."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> Measurement:
        """Wait until its time is over, and return its measurement."""
        output, error = self._process.communicate()
        if self._process.returncode:
            raise BenchError(f"{self._target.name}: {error.strip()}")
        result = json.loads(output)
        used = {role: after - self._cpu_before[role] for role, after in self._target.cpu_seconds().items()}
        used["loadgen"] = result["cpu_seconds"]
        served = self._target.requests_in_passages()
        passages = {
            role: (count - self._passages_before[role]) / result["operations_all"] for role, count in served.items()
        }
        return Measurement(
            operations_per_second=result["operations"] / result["seconds"],
            p50=result["p50"],
            p95=result["p95"],
            p99=result["p99"],
            max=result["max"],
            errors=result["errors"],
            cpu_us={role: seconds / result["operations_all"] * 1e6 for role, seconds in used.items()},
            passages=passages,
        )
