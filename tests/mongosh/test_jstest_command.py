"""The command `jstest`: the end of suites, their reports, and that nothing is left running."""

import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from shardwright.deploy.processes import ProcessIdentity
from shardwright.mongosh_compat.jstests.suite import Suite, find_suites, tags_in
from shardwright.mongosh_compat.runner import SCRIPTS
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from tests.integration.waiting import eventually
from tests.local_cluster import shardwright

START_SECONDS_MAX: Final = 180.0

NO_CLUSTER: Final = "const never = () => new ShardingTest();\n"
"""A suite that begins with this is given no cluster."""

ENDINGS: Final = {
    "quits.js": "assert.eq(1, 1); quit(); assert(false);",
    "fails.js": "print('before');\nfunction check() {\n  assert.eq(1, 2, 'numbers');\n}\ncheck();",
    "throws.js": "throw new TypeError('wrong');",
    "unsupported.js": "try { benchRun({}); } catch (error) { throw new Error('wrapped'); }",
    "parameters.js": "new ShardingTest({ configOptions: { setParameter: { maxSessions: 5 } } });",
    "part.js": "new ShardingTest({ rsOptions: { keyFile: 'key' } });",
    "keyless.js": "new ShardingTest({ other: { auth: '' } });",
    "unreached.js": (
        "new Mongo(MongoRunner.runMongod().host)"
        ".adminCommand({ configureFailPoint: 'hangInCloneStage', mode: 'alwaysOn' });"
    ),
    "tagged.js": "/*\n * @tags: [\n *   requires_fcv_62, # newer\n * ]\n */\nassert(false);",
}


def test_endings_and_reports(tmp_path: Path) -> None:
    for name, text in ENDINGS.items():
        (tmp_path / name).write_text(NO_CLUSTER + text)
    junit = tmp_path / "junit.xml"
    ended = shardwright("jstest", str(tmp_path), "--jobs", "2", "--junit", str(junit))
    assert ended.returncode == 1, ended.stderr
    lines = {match[2]: match[1] for match in re.finditer(rf"^(\w+) +{tmp_path}/([\w.:]+)", ended.stdout, re.MULTILINE)}
    assert lines == {
        "quits.js": "pass",
        "fails.js:4": "fail",
        "throws.js:2": "fail",
        "unsupported.js": "skip",
        "parameters.js": "skip",
        "part.js": "skip",
        "keyless.js": "skip",
        "unreached.js": "skip",
        "tagged.js": "skip",
    }
    for part in (
        "[1] and [2] are not equal : numbers",
        "| before",
        "TypeError: wrong",
        "requires_fcv_62",
        "not supported: config servers with the parameter maxSessions",
        "not supported: the fail point hangInCloneStage",
        "not supported: a shard or config server with keyFile",
        "not supported: ShardingTest with auth and without keyFile",
    ):
        assert part in ended.stdout
    assert ended.stdout.endswith("1 passed, 2 failed, 6 skipped\n")
    cases = {case.attrib["name"]: case for case in ElementTree.parse(junit).getroot()}
    assert cases["quits"].find("failure") is None
    failure = cases["fails"].find("failure")
    assert failure is not None
    assert "fails.js:4: [1] and [2]" in failure.attrib["message"]
    assert cases["tagged"].find("skipped") is not None


def test_only_a_shared_cluster_lacks_access_control(tmp_path: Path) -> None:
    tag = "// @tags: [requires_auth]\n"
    (tmp_path / "shared.js").write_text(tag + "db.getUsers();")
    (tmp_path / "own.js").write_text(tag + "new ShardingTest({ keyFile: 'key' });")
    reasons = {suite.path.name: suite.reason_to_skip() for suite in find_suites([tmp_path])}
    assert reasons == {"own.js": None, "shared.js": "tag requires_auth: the shared cluster has no access control"}


@pytest.mark.exhaustive
def test_a_shared_cluster_has_an_empty_database(tmp_path: Path) -> None:
    for name in ("first.js", "second.js"):
        (tmp_path / name).write_text(
            "assert.eq(['test'], db.getSiblingDB('config').databases.distinct('_id'));\n"
            "assert.eq([], db.getCollectionNames());\n"
            "assert.commandWorked(db.getSiblingDB('other').c.insert({ _id: 1 }));\n"
            "assert.commandWorked(db.c.insert({ _id: 1 }));\n"
        )
    ended = shardwright("jstest", str(tmp_path), timeout=START_SECONDS_MAX)
    assert ended.returncode == 0, ended.stdout


def test_a_suite_without_end_fails(tmp_path: Path) -> None:
    suite = tmp_path / "endless.js"
    suite.write_text(NO_CLUSTER + "while (true) sleep(1000);")
    ended = shardwright("jstest", str(suite), "--timeout", "5")
    assert ended.returncode == 1, ended.stderr
    assert "within 5 s" in ended.stdout
    assert ended.stdout.endswith("0 passed, 1 failed, 0 skipped\n")


def pids_in(marker: Path) -> list[int]:
    """The processes of the cluster that a suite has written down; none if it has not."""
    return [int(each) for each in marker.read_text().split()] if marker.exists() else []


def test_interruption_stops_clusters(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    suite = tmp_path / "suite.js"
    suite.write_text(
        f"const st = new ShardingTest({{ shards: 1 }});\n"
        f"writeFile('{marker}', st._cluster.processes.map((each) => each.pid).join(' '));\n"
        "sleep(600000);\n"
    )
    command = [sys.executable, "-m", "shardwright.deploy.cli", "jstest", str(suite)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        try:
            eventually(lambda: pids_in(marker) or running.poll() is not None, within=START_SECONDS_MAX)
            pids = pids_in(marker)
        finally:
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=START_SECONDS_MAX)
    assert running.returncode == 130, output
    assert len(pids) == 5
    assert [pid for pid in pids if ProcessIdentity.of(pid) is not None] == []


@pytest.mark.exhaustive
def test_failure_stops_clusters(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    suite = tmp_path / "suite.js"
    suite.write_text(
        f"const st = new ShardingTest({{ shards: 1 }});\n"
        f"writeFile('{marker}', st._cluster.processes.map((each) => each.pid).join(' '));\n"
        "assert.eq(1, 2);\n"
    )
    assert shardwright("jstest", str(suite), timeout=START_SECONDS_MAX).returncode == 1
    assert [pid for pid in pids_in(marker) if ProcessIdentity.of(pid) is not None] == []


def test_a_port_without_a_server_is_not_connected_to(tmp_path: Path) -> None:
    def hang_up() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(hang_up)
        suite = tmp_path / "connects.js"
        suite.write_text(f"{NO_CLUSTER}assert.throws(() => new Mongo('127.0.0.1:{listener.getsockname()[1]}'));")
        ended = shardwright("jstest", str(suite), "--timeout", "60")
        listener.shutdown(socket.SHUT_RDWR)
    assert ended.returncode == 0, ended.stdout


def test_missing_file() -> None:
    ended = shardwright("jstest", "no/such/suite.js")
    assert ended.returncode == 1
    assert "there is no file no/such/suite.js" in ended.stderr


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("db.c.drop();", set()),
        ("// @tags: [a, b_c]\n", {"a", "b_c"}),
        ("/**\n * About.\n * @tags: [\n *   a, # because\n *   b,\n * ]\n */", {"a", "b"}),
        ("// @tags: []", set()),
    ],
)
def test_tags(text: str, tags: set[str]) -> None:
    assert tags_in(text) == tags


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("db.c.drop();", False),
        ("const st = new ShardingTest({ shards: 2 });", True),
        ("var rst = new ReplSetTest({nodes: 1});", True),
        ("// no new ShardingTest() here\ndb.c.drop();", False),
        ("/* new ShardingTest() */ db.c.drop();", False),
        ("MongoRunner.runMongod();", True),
    ],
)
def test_who_starts_the_deployment(tmp_path: Path, text: str, is_own: bool) -> None:
    path = tmp_path / "suite.js"
    path.write_text(text)
    assert Suite.read(path).has_own_deployment is is_own


def test_libraries_are_no_suites(tmp_path: Path) -> None:
    for name in ("b.js", "a/a.js", "libs/l.js", "a/libs/l.js", "note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [suite.path.name for suite in find_suites([tmp_path])] == ["a.js", "b.js"]


def test_excluded_tags(tmp_path: Path) -> None:
    path = tmp_path / "suite.js"
    path.write_text("// @tags: [slow]")
    suite = Suite.read(path)
    assert suite.reason_to_skip() is None
    assert suite.reason_to_skip(["slow"]) == "tag slow is excluded"


def test_error_codes_are_those_of_the_daemons() -> None:
    text = (SCRIPTS / "jstests" / "shell" / "error_codes.js").read_text()
    listed = {name: int(code) for name, code in re.findall(r"^  (\w+): (\d+),$", text, re.MULTILINE)}
    assert listed == {code.name: code.value for code in ErrorCode}


def test_categories_of_errors_are_those_of_the_daemons() -> None:
    text = (SCRIPTS / "jstests" / "shell" / "error_codes.js").read_text()
    block = text[text.index("const CATEGORIES = {") : text.index("for (const [category")]
    listed = {
        name: re.findall(r"\w+", members) for name, members in re.findall(r"(\w+):\s*((?:\"[^\"]*\"[\s+]*)+),", block)
    }
    shown = {
        "RetriableError": Category.RETRYABLE,
        "NetworkError": Category.NETWORK,
        "Interruption": Category.INTERRUPTION,
        "NotPrimaryError": Category.NOT_PRIMARY,
        "StaleShardVersionError": Category.STALE_SHARD_VERSION,
        "WriteConcernError": Category.WRITE_CONCERN,
    }
    for name, category in shown.items():
        assert listed[name] == [code.name for code in ErrorCode if has_category(code.value, category)]
