"""Running many suites, several at a time."""

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwright.mongosh_compat.jstests.lane import Lane
from shardwright.mongosh_compat.jstests.launcher import Launcher, LauncherError
from shardwright.mongosh_compat.jstests.outcome import Outcome, Result
from shardwright.mongosh_compat.jstests.process_groups import ProcessGroups, StoppedError
from shardwright.mongosh_compat.jstests.suite import Suite
from shardwright.mongosh_compat.jstests.suite_process import SuiteRunner

COMPATIBLE_VERSIONS: Final = ("4.4",)
"""Versions of MongoDB before 6.0 whose suites the shell can adapt (``scripts/jstests/shell/compat.js``)."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        mongod: the path of mongod, for suites that start one alone.
        jobs: the number of suites that run at a time.
        timeout: seconds for each suite.
        seed: the seed for suites that request it.
        uri: a deployment that replaces the shared clusters.
        compat: one of `COMPATIBLE_VERSIONS`, whose catalog suites may query.
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
        self._runner = SuiteRunner(
            options.mongosh, options.mongod, self._launcher, options.timeout, options.seed, options.compat
        )
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
        lane = Lane(self._root / f"shared{number}", self._launcher, self._options.uri)
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
