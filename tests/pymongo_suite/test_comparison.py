"""Reading reports and exceptions, and what two results of a file say."""

import fnmatch
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase

import pytest

from tests.pymongo_suite import run_on_requirements
from tests.pymongo_suite.comparison import Comparison
from tests.pymongo_suite.exceptions import read_exceptions, read_files_not_run
from tests.pymongo_suite.files import AUTHENTICATION, MOTOR, MOTOR_TLS, PYMONGO, TLS
from tests.pymongo_suite.results import Outcome, read_results
from tests.pymongo_suite.skip_reasons import OF_TOPOLOGY
from tests.pymongo_suite.table import table
from tests.pymongo_suite.tolerance import LIMITS, with_tolerance
from tests.source_distributions import source_distribution

RUN = (*PYMONGO, *MOTOR, *AUTHENTICATION, TLS, *MOTOR_TLS)

PASSED, SKIPPED, FAILED = Outcome.PASSED, Outcome.SKIPPED, Outcome.FAILED
NOT_FOR_TOPOLOGY = Outcome.NOT_FOR_TOPOLOGY

REPORT = """
<testsuites><testsuite>
  <testcase classname="test.test_cursor.TestCursor" name="test_a"/>
  <testcase classname="test.test_cursor.TestCursor" name="test_b"><skipped message="why"/></testcase>
  <testcase classname="test.test_cursor.TestCursor" name="test_c"><failure message="why"/></testcase>
  <testcase classname="test.test_cursor.TestCursor" name="test_d"/>
  <testcase classname="test.test_cursor.TestCursor" name="test_d"><error message="in tearDown"/></testcase>
  <testcase classname="test.test_cursor.TestCursor" name="test_e">
    <skipped message="Must be connected to a mongod, not a mongos"/>
  </testcase>
</testsuite></testsuites>
"""

EXCEPTIONS = """
| Test | Reason |
| --- | --- |
| `test_cursor.py::TestCursor.test_a` | mongos fails it too |
| `test_cursor.py::TestCursor.test_b` | and this one |
| `asyncio_tests/test_asyncio_cursor.py::TestBulk.test_a` | likewise |

| Files | Reason |
| --- | --- |
| `test_code.py`, `mockupdb/test_*.py` | no server |
| `test_dns.py` | no records |
"""


def test_a_test_with_several_entries_has_the_worst_outcome(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert read_results(report) == {
        "TestCursor.test_a": PASSED,
        "TestCursor.test_b": SKIPPED,
        "TestCursor.test_c": FAILED,
        "TestCursor.test_d": FAILED,
        "TestCursor.test_e": NOT_FOR_TOPOLOGY,
    }


def test_lost_are_tests_that_pass_on_the_replica_set_only() -> None:
    plain = {"a": PASSED, "b": PASSED, "c": PASSED, "d": FAILED, "e": SKIPPED, "f": PASSED, "g": PASSED}
    sharded = {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": FAILED, "e": FAILED, "g": NOT_FOR_TOPOLOGY}
    comparison = Comparison("test_cursor", plain, sharded, frozenset("b"))
    assert comparison.lost == ["b", "c", "f"]
    assert comparison.unexpected == ["c", "f"]
    assert comparison.outdated == []


@pytest.mark.parametrize("outcome", [PASSED, NOT_FOR_TOPOLOGY])
def test_an_exception_that_does_not_fail_is_outdated(outcome: Outcome) -> None:
    comparison = Comparison("test_cursor", {"a": PASSED}, {"a": outcome}, frozenset({"a", "gone"}))
    assert comparison.outdated == ["a", "gone"]


class Specification:
    """As the suite's class for tests of specifications, on an open cluster."""

    @staticmethod
    def should_run_on(requirements: list[dict[str, object]]) -> bool:
        return any(not requirement.keys() & {"topologies", "auth"} for requirement in requirements)


def test_tests_for_other_topologies_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patched(Specification):
        pass

    monkeypatch.setitem(sys.modules, "test.unified_format", SimpleNamespace(UnifiedSpecTestMixinV1=Patched))
    run_on_requirements.pytest_collection_finish()
    assert Patched.should_run_on([{"topologies": ["single"]}, {"minServerVersion": "4.0"}])
    assert not Patched.should_run_on([{"topologies": ["single"], "auth": True}])
    with pytest.raises(pytest.skip.Exception) as skipped:
        Patched.should_run_on([{"auth": True}, {"topologies": ["single"]}])
    assert skipped.value.msg in OF_TOPOLOGY


def test_exceptions_are_read_by_file(tmp_path: Path) -> None:
    page = tmp_path / "exceptions.md"
    page.write_text(EXCEPTIONS)
    assert read_exceptions(page) == {
        "test_cursor": {"TestCursor.test_a", "TestCursor.test_b"},
        "asyncio_tests/test_asyncio_cursor": {"TestBulk.test_a"},
    }


def test_files_that_are_not_run_are_read(tmp_path: Path) -> None:
    page = tmp_path / "exceptions.md"
    page.write_text(EXCEPTIONS)
    assert read_files_not_run(page) == ["test_code", "mockupdb/test_*", "test_dns"]


@pytest.mark.parametrize(
    "row",
    [
        "| `test_cursor.py::TestCursor.test_a` | |",
        "| `TestCursor.test_a` | why |",
        "| `test_code.py` | |",
        "| `test_code.py`, test_dns.py | why |",
    ],
)
def test_an_exception_needs_a_test_and_a_reason(tmp_path: Path, row: str) -> None:
    page = tmp_path / "exceptions.md"
    page.write_text(row)
    with pytest.raises(ValueError, match="no test and reason"):
        read_exceptions(page)


def test_the_exceptions_are_of_files_that_are_run() -> None:
    assert set(read_exceptions()) <= {*RUN}


def test_every_file_is_run_or_has_a_reason() -> None:
    """No file is left out silently, and no reason is given for a file that is run or does not exist."""
    files = {file for package in ("pymongo", "motor") for file in files_of(source_distribution(package) / "test")}
    reasons = {pattern: set(fnmatch.filter(files, pattern)) for pattern in read_files_not_run()}
    not_run = set().union(*reasons.values())
    assert files - {*RUN} - not_run == set()
    assert {*RUN} - files == set()
    assert {*RUN} & not_run == set()
    assert [pattern for pattern, found in reasons.items() if not found] == []


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("test_*.py")}


def test_the_table_names_what_is_lost() -> None:
    comparison = Comparison(
        "test_cursor", {"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED}, frozenset({"b", "c"})
    )
    lines = table([comparison]).splitlines()
    assert lines[2].split() == ["test_cursor", "2", "0", "0", "0", "2", "0", "2"]
    assert lines[3].split() == ["all", "2", "0", "0", "0", "2", "0", "2"]
    assert lines[4:] == [
        "LOST: test_cursor.py::a",
        "excepted: test_cursor.py::b",
        "NO EXCEPTION ANY MORE: test_cursor.py::c",
    ]


def test_durations_may_differ_more_on_a_busy_machine_only_where_it_is_listed() -> None:
    limit, allowed = LIMITS["test_4_retry_backoff_is_enforced"]
    tolerant = with_tolerance(TestCase().assertLess, limit, allowed)
    tolerant(0.52, limit)
    with pytest.raises(AssertionError):
        tolerant(2.3, limit)
    with pytest.raises(AssertionError):
        tolerant(0.3, 0.2)


@pytest.mark.parametrize("test", LIMITS)
def test_tests_with_a_tolerance_are_those_of_the_suite(test: str) -> None:
    """With the limit that is replaced: otherwise the suite has changed."""
    source = (source_distribution("pymongo") / "test" / "test_transactions.py").read_text()
    body = source.partition(f"def {test}(")[2].partition("\nclass ")[0]
    assert f"), {LIMITS[test][0]}" in body
