"""The mongosh process of one suite."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.mongosh_compat.jstests.launcher import Launcher
from shardwright.mongosh_compat.jstests.outcome import Outcome, Result
from shardwright.mongosh_compat.jstests.suite import Suite
from shardwright.mongosh_compat.runner import SCRIPTS, make_home

_MAIN: Final = SCRIPTS / "jstests" / "main.js"
_SETTINGS: Final = "SHARDWRIGHT_JSTEST"


@dataclass(frozen=True)
class SuiteRunner:
    """Runner of suites.

    Attributes:
        timeout: seconds for each suite.
        seed: the seed of ``Random``, for suites that request the run's seed.
        compat: the version before 6.0 whose catalog suites query, if any.
    """

    mongosh: str
    mongod: str
    launcher: Launcher
    timeout: float
    seed: int
    compat: str | None

    def run(self, suite: Suite, directory: Path, uri: str | None) -> Outcome:
        """Run a suite, and end everything that it started.

        Its files and clusters are in a new directory, which is removed afterwards. ``uri`` is None if it starts its own
        deployment.
        """
        started = time.monotonic()
        make_home(directory)
        log = directory / "output"
        settings = {
            "file": str(suite.path),
            "directory": str(directory),
            "outcome": str(directory / "outcome.json"),
            "launcher": list(self.launcher.command),
            "mongosh": self.mongosh,
            "mongod": self.mongod,
            "uri": uri,
            "seed": self.seed,
            "compat": self.compat,
        }
        try:
            ended = self._run_mongosh(settings, directory, log)
            output = log.read_text(errors="replace")
        finally:
            self.launcher.remove(directory)
        return _outcome(suite, ended, output, time.monotonic() - started)

    def _run_mongosh(self, settings: Mapping[str, object], directory: Path, log: Path) -> dict[str, Any]:
        """Run mongosh; returns the suite's report of its end."""
        command = [self.mongosh, "--nodb", "--quiet", "--norc", "--eval", f"require({json.dumps(str(_MAIN))})"]
        environment = {**os.environ, "HOME": str(directory), "NO_COLOR": "1", _SETTINGS: json.dumps(settings)}
        with log.open("wb") as output:
            try:
                status = self.launcher.groups.run(command, output, self.timeout, environment)
            except subprocess.TimeoutExpired:
                return {"result": "fail", "message": f"the suite did not end within {self.timeout:.0f} s"}
        try:
            ended: dict[str, Any] = json.loads((directory / "outcome.json").read_text())
        except FileNotFoundError:
            return {"result": "fail", "message": f"mongosh ended with exit status {status}"}
        return ended


def _outcome(suite: Suite, ended: Mapping[str, Any], output: str, seconds: float) -> Outcome:
    return Outcome(
        suite,
        Result(ended["result"]),
        ended.get("message") or "",
        ended.get("line"),
        ended.get("stack") or "",
        output,
        seconds,
    )
