"""The results of tests, read from the reports that pytest and other runners write (JUnit XML)."""

from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

Results = dict[str, "Outcome"]
"""The outcome of each test, by the names of its class and of itself with a dot between them."""


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


_WORST_FIRST = (Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)


def read_results(report: Path) -> Results:
    """The outcome of each test in a report; the worst one for a test with several entries, such as for its subtests."""
    results: Results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        outcomes = {_outcome(case), results.get(name, Outcome.PASSED)}
        results[name] = next(outcome for outcome in _WORST_FIRST if outcome in outcomes)
    return results


def _outcome(case: ElementTree.Element) -> Outcome:
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
        return Outcome.FAILED
    return Outcome.SKIPPED if "skipped" in tags else Outcome.PASSED
