"""The command `jstest`: its options, and their execution."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.mongosh_compat.jstests.outcome import Outcome, Result
from shardwright.mongosh_compat.jstests.report import outcome_text, summary_text, write_junit
from shardwright.mongosh_compat.jstests.run import COMPATIBLE_VERSIONS, RunOptions, run_suites
from shardwright.mongosh_compat.jstests.suite import find_suites
from shardwright.mongosh_compat.runner import find_mongosh

_TIMEOUT: Final = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a suite, or a directory of suites")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="run N suites at a time (default: 1)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit XML report to FILE")
    parser.add_argument(
        "--timeout",
        type=_count,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"fail a suite that takes longer (default: {_TIMEOUT:.0f})",
    )
    parser.add_argument("--seed", type=_count, metavar="N", help="TestData.seed (default: a random number)")
    parser.add_argument("--uri", help="run suites that use the global db here, and not on a cluster started for them")
    parser.add_argument(
        "--exclude-tag", dest="excluded", action="append", default=[], metavar="TAG", help="skip suites with this tag"
    )
    parser.add_argument(
        "--compat", choices=COMPATIBLE_VERSIONS, help="the version of MongoDB that the suites were written for"
    )


def run_command(options: argparse.Namespace, launcher: Sequence[str], mongod: str) -> int:
    """Run the suites and print their outcomes; returns the exit status, 1 if any failed.

    Raises:
        FileNotFoundError: a file does not exist.
        MongoshNotFoundError: there is no mongosh.
    """
    suites = find_suites(options.files)
    seed = random.randrange(1, 2**31) if options.seed is None else options.seed
    print(f"running {len(suites)} suites, {options.jobs} at a time, with --seed {seed}", flush=True)
    wanted = RunOptions(
        *(launcher, find_mongosh(), mongod, options.jobs, options.timeout, seed, options.uri),
        excluded=frozenset(options.excluded),
        compat=options.compat,
    )
    outcomes = run_suites(suites, wanted, _print)
    if options.junit is not None:
        write_junit(outcomes, options.junit)
    print(summary_text(outcomes))
    return 1 if any(outcome.result is Result.FAIL for outcome in outcomes) else 0


def _print(outcome: Outcome) -> None:
    print(outcome_text(outcome), flush=True)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)
