"""Outcomes as text, and as a JUnit XML file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from shardwright.mongosh_compat.jstests.outcome import Outcome, Result

_OUTPUT_LINES_MAX: Final = 30


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
