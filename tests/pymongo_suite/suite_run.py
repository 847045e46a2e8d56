"""Running one file of a driver's suite against one deployment."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pymongo_suite.deployments import SUITE_PASSWORD, SUITE_USER
from tests.pymongo_suite.files import AUTHENTICATION, package_of
from tests.pymongo_suite.results import Results, read_results
from tests.source_distributions import source_distribution

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent.parent
_PLUGINS: Final = {
    "pymongo": ("time_limit", "host_name", "run_on_requirements", "tolerance"),
    "motor": ("time_limit", "host_name", "patience"),
}
"""The modules of this package that are loaded into the pytest that runs a suite."""


class SuiteError(Exception):
    """A file of the suite could not be run at all."""


@dataclass(frozen=True)
class SuiteRun:
    """Runs files of drivers' suites against the server at ``address``, with reports in ``reports``."""

    address: str
    reports: Path

    def run(self, file: str, *arguments: str, seconds_max: float = 1800) -> Results:
        """The result of each test of a file.

        Args:
            file: one of `files`.
            arguments: more of them for pytest.
            seconds_max: how long the whole file may take.

        Raises:
            SuiteError: pytest ended without a report, or did not end.
        """
        report = self._report(file)
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        with report.with_suffix(".log").open("wb") as log:
            try:
                subprocess.run(
                    [*self._command(file, report), f"test/{file}.py", *arguments],
                    cwd=source_distribution(package_of(file)),
                    env=self._environment(file),
                    stdout=log,
                    stderr=log,
                    timeout=seconds_max,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise SuiteError(f"{file} takes longer than {seconds_max} s: see {log.name}") from error
        if not report.exists():
            raise SuiteError(f"{file} ended without a report: see {log.name}")
        return read_results(report)

    def last(self, file: str) -> Results:
        """The results of the last time that a file was run.

        Raises:
            SuiteError: it never was.
        """
        if not self._report(file).exists():
            raise SuiteError(f"{file} has never been run: {self._report(file)} does not exist")
        return read_results(self._report(file))

    def _report(self, file: str) -> Path:
        return self.reports / f"{file}.xml"

    def _command(self, file: str, report: Path) -> list[str]:
        configuration = ["-c", str(_HERE / "suite.ini"), "--rootdir", "."]
        ours = [f"tests.pymongo_suite.{name}" for name in _PLUGINS[package_of(file)]]
        chosen = (*ours, "no:cacheprovider", "no:xdist", "no:hypothesispytest")
        plugins = [word for plugin in chosen for word in ("-p", plugin)]
        return [sys.executable, "-m", "pytest", *configuration, *plugins, f"--junit-xml={report}"]

    def _environment(self, file: str) -> dict[str, str]:
        host, _, port = self.address.rpartition(":")
        # The package is the installed one: the distribution's copy lacks what has to be compiled.
        server = {"DB_IP": host, "DB_PORT": port, "MONGODB_URI": f"mongodb://{self.address}/"}
        # As in Motor's own continuous integration. Without writes, resume tokens advance every ten seconds only.
        patience = {"ASYNC_TEST_TIMEOUT": "30"}
        # PyMongo's suite has a user by default; with one, Motor's takes the server for closed.
        user = {"DB_USER": SUITE_USER, "DB_PASSWORD": SUITE_PASSWORD} if file in AUTHENTICATION else {}
        return {**os.environ, **server, **user, **patience, "PYTHONPATH": str(_ROOT)}
