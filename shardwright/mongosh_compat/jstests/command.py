"""The command `jstest`: its options, their execution, and the outcomes as text and as a JUnit XML file."""

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from shardwright.mongosh_compat.jstests.run import COMPATIBLE_VERSIONS, RunOptions, run_suites
from shardwright.mongosh_compat.jstests.suite import Outcome, Result, find_suites
from shardwright.mongosh_compat.runner import find_mongosh

_OUTPUT_LINES_MAX: Final = 30

_TIMEOUT: Final = 600.0


def outcome_text(outcome: Outcome) -> str:
    """Format the line of a suite; if it failed, with the stack and the end of its output."""
    line = f"{outcome.result.value:<4}  {outcome.place}  ({outcome.seconds:.1f} s)"
    if outcome.message:
        line += f"\n      {outcome.message}"
    if outcome.result is not Result.FAIL:
        return line
    printed = outcome.output.splitlines()[-_OUTPUT_LINES_MAX:]
    return "\n".join([line, *(f"      | {each}" for each in printed), *_frames(outcome)])


def summary_text(outcomes: Sequence[Outcome]) -> str:
    """Format the numbers of suites that passed, failed and were skipped."""
    counts = Counter(outcome.result for outcome in outcomes)
    return f"{counts[Result.PASS]} passed, {counts[Result.FAIL]} failed, {counts[Result.SKIP]} skipped"


def write_junit(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the outcomes as a JUnit XML file: a test case for each suite."""
    counts = Counter(outcome.result for outcome in outcomes)
    root = ElementTree.Element(
        "testsuite",
        name="jstest",
        tests=str(len(outcomes)),
        failures=str(counts[Result.FAIL]),
        errors="0",
        skipped=str(counts[Result.SKIP]),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in sorted(outcomes, key=lambda outcome: outcome.suite.name):
        _add_case(root, outcome)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_case(root: ElementTree.Element, outcome: Outcome) -> None:
    path = Path(outcome.suite.name)
    case = ElementTree.SubElement(
        root,
        "testcase",
        classname=".".join(path.parent.parts),
        name=path.stem,
        file=outcome.suite.name,
        time=f"{outcome.seconds:.3f}",
    )
    if outcome.result is Result.FAIL:
        failure = ElementTree.SubElement(case, "failure", message=_printable(f"{outcome.place}: {outcome.message}"))
        failure.text = _printable(outcome.stack)
        ElementTree.SubElement(case, "system-out").text = _printable(outcome.output)
    elif outcome.result is Result.SKIP:
        ElementTree.SubElement(case, "skipped", message=_printable(outcome.message))


def _frames(outcome: Outcome) -> list[str]:
    """Return the frames of the stack that are in the suite."""
    file = str(outcome.suite.path)
    return [f"      {each.strip()}" for each in outcome.stack.splitlines() if file in each]


def _printable(text: str) -> str:
    """Remove the control characters that XML forbids."""
    return "".join(each for each in text if each >= " " or each in "\t\n\r")


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
        "--eval", dest="code", default="", metavar="CODE", help="evaluate this before each suite, such as load(…)"
    )
    parser.add_argument(
        "--shards", type=_count, default=2, metavar="N", help="shards of the cluster of suites with db (default: 2)"
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
        code=options.code,
        shards=options.shards,
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
