"""Runs MongoDB's own suites from a checkout and prints the results by folder.

``python -m tests.jstests_upstream CHECKOUT [--suites core,sharding] [--files FILE…] [--definition NAME] [--jobs N]``

A run continues the report of an earlier one, without the files that it has. The exit status is 1 if a file that
``expected.md`` does not list does not pass, or if a listed file passes. With one of MongoDB's definitions,
``expected/NAME.md`` lists the files whose results differ from ``expected.md``.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.processes import signals_interrupt
from shardwright.mongosh_compat.jstests.command import outcome_text
from shardwright.mongosh_compat.jstests.run import COMPATIBLE_VERSIONS, RunOptions, run_suites
from shardwright.mongosh_compat.jstests.suite import Outcome, Result, Suite
from shardwright.mongosh_compat.runner import find_mongosh
from tests.jstests_upstream.definition import of_folders, read_definition
from tests.jstests_upstream.expected import Verdict, expectations
from tests.jstests_upstream.results import FileResult, append, changes, read_report
from tests.source_distributions import ROOT

_REPORTS: Final = ROOT / "build" / "jstests_upstream"
_SUITES: Final = "core,aggregation,sharding,change_streams"
_LAUNCHER: Final = (sys.executable, "-m", "shardwright.deploy.cli")
_SECONDS_MAX: Final = 300.0


def main() -> int:
    """Run the files that the command line names and the report lacks."""
    options = _options()
    options.report = options.report or _REPORTS / f"{options.definition or 'results'}.jsonl"
    if options.fresh:
        options.report.unlink(missing_ok=True)
    if options.definition is None:
        definition = of_folders(options.checkout, options.files or options.suites.split(","))
    else:
        definition = read_definition(options.checkout, options.definition)
    chosen = definition.suites
    done = read_report(options.report)
    waiting = [suite for suite in chosen if suite.name not in done]
    if options.minutes is not None:
        random.Random(options.seed).shuffle(waiting)
    print(f"running {len(waiting)} of {len(chosen)} files, {options.jobs} at a time, with --seed {options.seed}")

    def report(outcome: Outcome) -> None:
        append(options.report, FileResult.of(outcome))
        print(outcome_text(outcome) if outcome.result is Result.FAIL else _short(outcome), flush=True)

    wanted = RunOptions(
        *(_LAUNCHER, find_mongosh(), find_mongod(), options.jobs, options.timeout, options.seed),
        compat=options.compat,
        code=definition.code,
        shards=definition.shards,
    )
    with signals_interrupt():  # the clusters end with the run
        run_suites(_until(options.minutes, waiting), wanted, report)
    found = read_report(options.report)
    report_of_chosen = {suite.name: found[suite.name] for suite in chosen if suite.name in found}
    verdict = Verdict(report_of_chosen, *expectations(options.definition))
    print(verdict.text())
    if options.against is not None:
        print("\n".join(["compared with the earlier report:", *changes(read_report(options.against), found)]))
    return int(bool(verdict.unexpected or verdict.outdated))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.jstests_upstream")
    parser.add_argument("checkout", type=Path, help="a checkout of MongoDB's repository")
    parser.add_argument("--suites", default=_SUITES, help=f"folders below jstests (default: {_SUITES})")
    parser.add_argument("--files", nargs="*", default=[], metavar="FILE", help="files below jstests in their place")
    parser.add_argument("--definition", metavar="NAME", help="MongoDB's definition of a suite, in their place")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="run N files at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=_SECONDS_MAX, metavar="SECONDS", help="for each file")
    parser.add_argument("--minutes", type=float, help="start files in a random order for so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**31), help="of that order and of Random")
    parser.add_argument("--compat", choices=COMPATIBLE_VERSIONS, help="the version that the suites are of, before 6.0")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the report to continue")
    parser.add_argument("--fresh", action="store_true", help="begin the report again")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with an earlier report")
    return parser.parse_args()


def _until(minutes: float | None, suites: Sequence[Suite]) -> Iterator[Suite]:
    """The suites, until time is up."""
    end = None if minutes is None else time.monotonic() + minutes * 60
    for suite in suites:
        if end is not None and time.monotonic() > end:
            return
        yield suite


def _short(outcome: Outcome) -> str:
    return outcome_text(replace(outcome, output=""))


if __name__ == "__main__":
    sys.exit(main())
