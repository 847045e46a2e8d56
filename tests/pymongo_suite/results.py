"""The results of tests, read from the reports that pytest and other runners write (JUnit XML)."""

from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from tests.pymongo_suite.skip_reasons import OF_TOPOLOGY

Results = dict[str, "Outcome"]
"""The outcome of each test, by the names of its class and of itself with a dot between them."""


class Outcome(StrEnum):
    """The end of a test."""

    PASSED = "passed"
    NOT_FOR_TOPOLOGY = "skipped for the topology"
    SKIPPED = "skipped"
    FAILED = "failed"


_WORST_FIRST = (Outcome.FAILED, Outcome.SKIPPED, Outcome.NOT_FOR_TOPOLOGY, Outcome.PASSED)


def read_results(report: Path) -> Results:
    """The outcome of each test in a report; the worst one for a test with several entries, such as for its subtests."""
    results: Results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        outcomes = {_outcome(case), results.get(name, Outcome.PASSED)}
        results[name] = next(outcome for outcome in _WORST_FIRST if outcome in outcomes)
    return results


def _outcome(case: ElementTree.Element) -> Outcome:
    children = {child.tag: child for child in case}
    if children.keys() & {"failure", "error"}:
        return Outcome.FAILED
    if "skipped" not in children:
        return Outcome.PASSED
    return Outcome.NOT_FOR_TOPOLOGY if children["skipped"].get("message") in OF_TOPOLOGY else Outcome.SKIPPED
