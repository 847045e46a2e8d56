"""Running many suites, several at a time.

A lane has suites that run one after the other, and the cluster that they share. Clusters are started and stopped
through the launcher's command, and each suite runs in a mongosh process. All processes end with the runner: each leads
a group, and the rest of its group is stopped with it.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pymongo import MongoClient

from shardwright.mongosh_compat.jstests.suite import Outcome, Result, Suite
from shardwright.mongosh_compat.runner import SCRIPTS, make_home

_END_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.02

_START_SECONDS_MAX: Final = 240.0
_STOP_SECONDS_MAX: Final = 120.0

_MAIN: Final = SCRIPTS / "jstests" / "main.js"
_SETTINGS: Final = "SHARDWRIGHT_JSTEST"

_OPTIONS: Final = (
    *("--orphan-cleanup-delay", "0"),
    *("--set-parameter", "enableTestCommands=1", "--set-parameter", "diagnosticDataCollectionEnabled=false"),
)
_KEPT: Final = ("admin", "config", "local")
_DATABASE: Final = "test"

COMPATIBLE_VERSIONS: Final = ("4.4",)
"""Versions of MongoDB before 6.0 whose suites the shell can adapt (``scripts/jstests/shell/compat.js``)."""


class StoppedError(Exception):
    """Error after the run was stopped, when no process is started any more."""


class ProcessGroups:
    """The process groups of one run; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self,
        command: Sequence[str],
        output: IO[bytes],
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command to its end; returns its exit status. Its whole group has ended then.

        Raises:
            StoppedError: the run was stopped.
            subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.
        """
        process = self._start(command, output, environment)
        try:
            status = process.wait(timeout)
        finally:
            with self._lock:
                self._running.discard(process)
            _end(process)
        if self._is_stopped:
            raise StoppedError
        return status

    def stop(self) -> None:
        """End all processes; each `run` raises StoppedError."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for process in running:
            process.kill()

    def _start(
        self, command: Sequence[str], output: IO[bytes], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise StoppedError
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
            self._running.add(process)
            return process


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Kill the leader, which may ignore signals, then let the rest of its group clean up before it is killed."""
    leader.kill()
    leader.wait()
    deadline = time.monotonic() + _END_SECONDS_MAX
    with suppress(ProcessLookupError):  # the group has ended
        os.killpg(leader.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            os.killpg(leader.pid, 0)
        os.killpg(leader.pid, signal.SIGKILL)


class LauncherError(Exception):
    """Failure to start a cluster; the message has the launcher's output."""


@dataclass(frozen=True)
class Launcher:
    """The launcher of clusters; its command has no arguments."""

    command: Sequence[str]
    groups: ProcessGroups

    def up(self, directory: Path, *options: str) -> dict[str, Any]:
        """Start a cluster; returns the document that describes it.

        Raises:
            LauncherError: it cannot be started.
            StoppedError: the run was stopped.
        """
        arguments = ["up", "--detach", "--json", "--port", "0", "--dir", str(directory), *options]
        with tempfile.TemporaryFile() as output:
            status = self.groups.run([*self.command, *arguments], output, _START_SECONDS_MAX)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if status != 0:
            raise LauncherError(f"no cluster could be started:\n{text}")
        document: dict[str, Any] = json.loads(text.splitlines()[-1])
        return document

    def remove(self, directory: Path) -> None:
        """Stop the clusters in or directly below a directory, even after the run was stopped; remove their files."""
        for cluster in [directory, *directory.glob("cluster*")]:
            if (cluster / "cluster.json").exists():
                subprocess.run(
                    [*self.command, "down", "--dir", str(cluster)],
                    capture_output=True,
                    timeout=_STOP_SECONDS_MAX,
                    check=False,
                )
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        mongod: the path of mongod, for suites that start one directly.
        jobs: the number of suites that run at a time.
        timeout: seconds for each suite.
        seed: the seed of ``Random``, for suites that request the run's seed.
        uri: a deployment that replaces the shared clusters.
        excluded: tags of suites to skip.
        compat: one of `COMPATIBLE_VERSIONS`, whose catalog suites may query.
        code: evaluated by the shell before each suite, at its top level.
        shards: the number of shards of the shared clusters.
    """

    launcher: Sequence[str]
    mongosh: str
    mongod: str
    jobs: int = 1
    timeout: float = 600.0
    seed: int = 0
    uri: str | None = None
    excluded: frozenset[str] = frozenset()
    compat: str | None = None
    code: str = ""
    shards: int = 2


@dataclass(frozen=True)
class SuiteRunner:
    """Runner of suites."""

    launcher: Launcher
    options: RunOptions

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
            "mongosh": self.options.mongosh,
            "mongod": self.options.mongod,
            "uri": uri,
            "seed": self.options.seed,
            "compat": self.options.compat,
            "code": self.options.code,
        }
        try:
            ended = self._run_mongosh(settings, directory, log)
            output = log.read_text(errors="replace")
        finally:
            self.launcher.remove(directory)
        return _outcome(suite, ended, output, time.monotonic() - started)

    def _run_mongosh(self, settings: Mapping[str, object], directory: Path, log: Path) -> dict[str, Any]:
        """Run mongosh; returns the suite's report of its end."""
        command = [self.options.mongosh, "--nodb", "--quiet", "--norc", "--eval", f"require({json.dumps(str(_MAIN))})"]
        environment = {**os.environ, "HOME": str(directory), "NO_COLOR": "1", _SETTINGS: json.dumps(settings)}
        with log.open("wb") as output:
            try:
                status = self.launcher.groups.run(command, output, self.options.timeout, environment)
            except subprocess.TimeoutExpired:
                return {"result": "fail", "message": f"the suite did not end within {self.options.timeout:.0f} s"}
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


class Lane:
    """A lane. Its cluster is started for the first suite that needs it.

    A deployment at a given URI replaces the cluster. Its databases are the user's and are not dropped.
    """

    def __init__(self, directory: Path, launcher: Launcher, uri: str | None = None, shards: int = 2) -> None:
        self._directory = directory
        self._launcher = launcher
        self._given = uri
        self._shards = shards
        self._uri: str | None = None

    def uri(self) -> str:
        """Return the deployment for a suite that uses the global ``db``. A shared cluster has an empty ``test``.

        Raises:
            LauncherError: the cluster cannot be started.
            StoppedError: the run was stopped.
        """
        if self._given is not None:
            return self._given
        if self._uri is None:
            self._uri = str(self._launcher.up(self._directory, *_OPTIONS, "--shards", str(self._shards))["uri"])
        self._empty(self._uri)
        return self._uri

    def close(self) -> None:
        """Stop the cluster, if there is one."""
        self._launcher.remove(self._directory)

    @staticmethod
    def _empty(uri: str) -> None:
        with MongoClient[dict[str, object]](uri) as client:
            for name in client.list_database_names():
                if name not in _KEPT:
                    client.drop_database(name)
            # As in MongoDB's fixtures, because a router does not fully check operations on a missing database.
            client.admin.command("enableSharding", _DATABASE)


def run_suites(suites: Iterable[Suite], options: RunOptions, report: Callable[[Outcome], None]) -> list[Outcome]:
    """Run suites; returns their outcomes in the order in which they ended.

    Suites are read lazily, and outcomes are reported one at a time. No process remains, even after KeyboardInterrupt.
    """
    with tempfile.TemporaryDirectory(prefix="jstest-") as root:
        return _Run(Path(root), options, report).run(suites)


class _Run:
    def __init__(self, root: Path, options: RunOptions, report: Callable[[Outcome], None]) -> None:
        self._root = root
        self._options = options
        self._report = report
        self._groups = ProcessGroups()
        self._launcher = Launcher(options.launcher, self._groups)
        self._runner = SuiteRunner(self._launcher, options)
        self._taking = threading.Lock()
        self._reporting = threading.Lock()
        self._outcomes: list[Outcome] = []

    def run(self, suites: Iterable[Suite]) -> list[Outcome]:
        waiting = enumerate(suites)
        with ThreadPoolExecutor(self._options.jobs) as threads:
            futures = {threads.submit(self._run_lane, number, waiting) for number in range(self._options.jobs)}
            try:
                _wait_for(futures)
            except BaseException:
                self._groups.stop()
                raise
        return self._outcomes

    def _run_lane(self, number: int, waiting: Iterator[tuple[int, Suite]]) -> None:
        lane = Lane(self._root / f"shared{number}", self._launcher, self._options.uri, self._options.shards)
        try:
            while (item := self._take(waiting)) is not None:
                self._run_one(lane, *item)
        except StoppedError:
            return
        finally:
            lane.close()

    def _take(self, waiting: Iterator[tuple[int, Suite]]) -> tuple[int, Suite] | None:
        with self._taking:
            return next(waiting, None)

    def _run_one(self, lane: Lane, index: int, suite: Suite) -> None:
        outcome = self._outcome(lane, self._root / str(index), suite)
        with self._reporting:
            self._outcomes.append(outcome)
            self._report(outcome)

    def _outcome(self, lane: Lane, directory: Path, suite: Suite) -> Outcome:
        reason = suite.reason_to_skip(self._options.excluded)
        if reason is not None:
            return Outcome(suite, Result.SKIP, reason)
        try:
            uri = None if suite.has_own_deployment else lane.uri()
        except LauncherError as error:
            return Outcome(suite, Result.FAIL, str(error))
        return self._runner.run(suite, directory, uri)


def _wait_for(futures: set[Future[None]]) -> None:
    """Wait until all have ended, or raise the first error."""
    while futures:
        done, futures = wait(futures, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
