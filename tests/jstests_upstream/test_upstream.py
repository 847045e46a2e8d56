"""The list of expected files, reports and their comparison, and a run of files that are written here."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from shardwright.deploy.processes import ProcessIdentity
from shardwright.mongosh_compat.jstests.suite import Result
from tests.integration.waiting import eventually
from tests.jstests_upstream.definition import read_definition
from tests.jstests_upstream.expected import EXPECTED, Verdict, expectations, read_expected
from tests.jstests_upstream.results import FileResult, append, changes, read_report
from tests.source_distributions import ROOT

SECONDS_MAX: Final = 120.0

PASSED: Final = FileResult("sharding/a.js", Result.PASS)
FAILED: Final = FileResult("sharding/b.js", Result.FAIL, "[1] and [2] are not equal\nmore", 7)
SKIPPED: Final = FileResult("core/views/c.js", Result.SKIP, "not supported: benchRun")

NO_CLUSTER: Final = "const never = () => new ShardingTest();\n"
FILES: Final = {
    "sharding/passes.js": "assert(true);",
    "sharding/fails.js": "assert(false);",
    "core/no.js": "benchRun();",
}


LISTS: Final = [EXPECTED, *sorted((EXPECTED.parent / EXPECTED.stem).glob("*.md"))]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_row_names_one_file_and_a_reason(path: Path) -> None:
    for file in read_expected(path):
        assert not re.search(r"[*?\[]", file)


@pytest.mark.parametrize(
    "row", ["| `sharding/*.js` | fail | why |", "| `sharding/a.js` | fail | |", "| `sharding/a.js` | pass | why |"]
)
def test_a_row_that_explains_no_single_file(tmp_path: Path, row: str) -> None:
    listed = tmp_path / "expected.md"
    listed.write_text(f"| File | Result | Reason |\n| --- | --- | --- |\n{row}\n")
    with pytest.raises(ValueError, match="no file, result and reason"):
        read_expected(listed)


def test_a_file_with_two_rows(tmp_path: Path) -> None:
    listed = tmp_path / "expected.md"
    listed.write_text("| `sharding/a.js` | fail | why |\n| `sharding/a.js` | skip | why |\n")
    with pytest.raises(ValueError, match="two rows"):
        read_expected(listed)


def test_verdict_of_a_report() -> None:
    report = {each.file: each for each in (PASSED, FAILED, SKIPPED)}
    expected = {PASSED.file: Result.FAIL, FAILED.file: Result.SKIP, SKIPPED.file: Result.SKIP}
    assert Verdict(report, expected, {}).outdated == []
    verdict = Verdict(report, expected, expected)
    assert (verdict.unexpected, verdict.outdated) == ([FAILED.file], [PASSED.file])
    assert [" ".join(line.split()) for line in verdict.text().splitlines()] == [
        "folder passed failed skipped unexpected",
        "core/views 0 0 1 0",
        "sharding 1 1 0 1",
        "all 1 1 1 1",
        "UNEXPECTED FAIL: sharding/b.js:7: [1] and [2] are not equal",
        "PASSES THOUGH LISTED: sharding/a.js",
    ]


def test_the_list_of_a_definition_overrides_the_list_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "expected").mkdir()
    (tmp_path / "expected.md").write_text("| `core/a.js` | fail | why |\n| `core/b.js` | fail | why |\n")
    (tmp_path / "expected" / "own.md").write_text("| `core/b.js` | skip | why |\n")
    everywhere = {"core/a.js": Result.FAIL, "core/b.js": Result.FAIL}
    assert expectations(None, tmp_path) == (everywhere, everywhere)
    assert expectations("other", tmp_path) == (everywhere, {})
    own = {"core/b.js": Result.SKIP}
    assert expectations("own", tmp_path) == ({**everywhere, **own}, own)


DEFINITION: Final = """
selector:
  roots: [jstests/core/**/*.js]
  exclude_files: [jstests/core/capped*.js]
  exclude_with_any_tags: [assumes_unsharded_collection]
executor:
  config:
    shell_options:
      global_vars: {TestData: {level: null}}
      eval: load("jstests/libs/override.js")
  fixture: {num_shards: 1}
"""


def test_the_definition_of_a_suite(tmp_path: Path) -> None:
    for name, text in {
        "jstests/core/a.js": f"{NO_CLUSTER}assert.eq([null, 1], [TestData.level, overridden]);",
        "jstests/core/views/b.js": f"{NO_CLUSTER}assert(false);",
        "jstests/core/capped1.js": "assert(false);",
        "jstests/core/tagged.js": "/* @tags: [assumes_unsharded_collection] */ assert(false);",
        "jstests/libs/override.js": "const overridden = 1;",
        "buildscripts/resmokeconfig/suites/own.yml": DEFINITION,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    definition = read_definition(tmp_path, "own")
    assert ([each.name for each in definition.suites], definition.shards) == (["core/a.js", "core/views/b.js"], 1)
    ended = _run(tmp_path, "--definition", "own", "--report", str(tmp_path / "report.jsonl"))
    results = set(re.findall(r"^(?:pass|fail)  core[\w/]*\.js", ended.stdout, re.MULTILINE))
    assert results == {"pass  core/a.js", "fail  core/views/b.js"}, ended.stdout + ended.stderr


def test_reports_are_continued_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.jsonl"
    assert read_report(path) == {}
    for each in (PASSED, FAILED, SKIPPED):
        append(path, each)
    earlier = read_report(path)
    append(path, FileResult(FAILED.file, Result.PASS))
    assert earlier[FAILED.file] == FAILED
    assert changes(earlier, read_report(path)) == ["fail -> pass: sharding/b.js"]


def test_a_run_is_continued_and_judged(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / "jstests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "jstests" / name).write_text(NO_CLUSTER + text)
    report = tmp_path / "report.jsonl"
    append(report, FileResult("sharding/passes.js", Result.FAIL))
    ended = _run(tmp_path, "--suites", "sharding,core", "--report", str(report))
    assert ended.returncode == 1, ended.stderr
    assert "running 2 of 3 files" in ended.stdout
    results = {file: each.result for file, each in read_report(report).items()}
    assert results == {
        "sharding/passes.js": Result.FAIL,
        "sharding/fails.js": Result.FAIL,
        "core/no.js": Result.SKIP,
    }
    ended = _run(
        *(tmp_path, "--files", "sharding/passes.js", "--minutes", "1", "--report", str(tmp_path / "new.jsonl")),
        *("--against", str(report), "--compat", "4.4"),
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.endswith("compared with the earlier report:\nfail -> pass: sharding/passes.js\n")


def test_a_run_that_is_terminated_leaves_nothing_running(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    suite = tmp_path / "jstests" / "sharding" / "endless.js"
    suite.parent.mkdir(parents=True)
    suite.write_text(f"writeFile('{marker}', `${{MongoRunner.runMongod().pid}} `);\nsleep(600000);\n")
    command = [sys.executable, "-m", "tests.jstests_upstream", str(tmp_path), "--suites", "sharding"]
    with subprocess.Popen([*command, "--report", str(tmp_path / "report.jsonl")], cwd=ROOT) as running:
        eventually(lambda: marker.exists() or running.poll() is not None, within=SECONDS_MAX)
        running.terminate()
        running.wait(SECONDS_MAX)
    assert ProcessIdentity.of(int(marker.read_text())) is None


def _run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.jstests_upstream", str(checkout), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
