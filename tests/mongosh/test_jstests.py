"""Our own suites in the style of jstests pass. A quick run takes a few of them, others each day."""

import sys
from pathlib import Path
from typing import Final

import pytest

from shardwright.deploy.mongod import find_mongod
from shardwright.mongosh_compat.jstests.command import outcome_text
from shardwright.mongosh_compat.jstests.run import RunOptions, run_suites
from shardwright.mongosh_compat.jstests.suite import Outcome, Result, find_suites
from shardwright.mongosh_compat.runner import find_mongosh
from tests.local_cluster import RunningCluster

SUITES: Final = Path(__file__).parent.parent / "jstests"
LAUNCHER: Final = (sys.executable, "-m", "shardwright.deploy.cli")
SECONDS_MAX: Final = 300.0


def names(*folders: str) -> list[str]:
    return [path.relative_to(SUITES).as_posix() for each in folders for path in sorted((SUITES / each).glob("*.js"))]


QUERIES_OF_CHUNKS: Final = """
const name = "compat_of_chunks.c";
assert.commandWorked(db.adminCommand({ enableSharding: "compat_of_chunks" }));
assert.commandWorked(db.adminCommand({ shardCollection: name, key: { _id: 1 } }));
assert.commandWorked(db.adminCommand({ split: name, middle: { _id: 0 } }));
const chunks = db.getSiblingDB("config").chunks;
assert.eq(2, chunks.find({ ns: name }).itcount());
assert.eq(1, chunks.count({ ns: name, min: { _id: 0 } }));
assert.eq(2, chunks.aggregate([{ $match: { ns: /^compat_of_chunks/ } }]).itcount());
assert.eq(1, chunks.distinct("shard", { ns: name }).length);
assert.eq(null, chunks.findOne({ ns: "compat_of_chunks.missing" }));
assert.eq(2, chunks.find({ ns: name }).explain("executionStats").executionStats.nReturned);
assert.eq(0, chunks.update({ ns: "compat_of_chunks.missing" }, { $set: { jumbo: true } }).nMatched);
const stream = db.getSiblingDB("compat_of_chunks").c.watch();
assert.commandWorked(db.getSiblingDB("compat_of_chunks").c.insert({ _id: 1, wallTime: 1 }));
assert.soon(() => stream.hasNext());
const event = stream.next();
assert.eq(["insert", 1, false], [event.operationType, event.fullDocument.wallTime, "wallTime" in event]);
db.getSiblingDB("compat_of_chunks").dropDatabase();
assert.eq(["commands", true], [db.getMongo().writeMode(), db.getMongo().useReadCommands()]);
"""
"""A suite that queries the catalog, requests the opcodes in use, and expects events as suites of 4.4 do."""


def run(path: Path, uri: str | None = None, compat: str | None = None, code: str = "") -> Outcome:
    options = RunOptions(
        LAUNCHER, find_mongosh(), find_mongod(), timeout=SECONDS_MAX, uri=uri, compat=compat, code=code
    )
    (outcome,) = run_suites(find_suites([path]), options, lambda outcome: None)
    return outcome


@pytest.mark.matrix(share=0.07)
@pytest.mark.parametrize("name", names("core", "sharded"))
def test_suite_on_a_shared_cluster(cluster: RunningCluster, name: str) -> None:
    outcome = run(SUITES / name, cluster.client_uri())
    assert outcome.result is Result.PASS, outcome_text(outcome)


@pytest.mark.matrix(share=0.1)
@pytest.mark.parametrize("name", names("sharding"))
def test_suite_on_its_own_cluster(name: str) -> None:
    outcome = run(SUITES / name)
    assert outcome.result is Result.PASS, outcome_text(outcome)


def test_every_suite_is_run_by_one_of_these() -> None:
    suites = find_suites([SUITES])
    assert len(suites) == len(names("core", "sharded", "sharding")) >= 40
    assert [suite.name for suite in suites if suite.has_own_deployment != ("sharding" in suite.path.parts)] == []


def test_code_before_the_suite(cluster: RunningCluster, tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "override.js").write_text("DB.prototype.getName = () => 'overridden';")
    suite = tmp_path / "suite.js"
    suite.write_text("assert.eq(['overridden', 1], [db.getName(), given]);")
    code = "var given = TestData.given = 1; load('libs/override.js');"
    outcome = run(suite, cluster.client_uri(), code=code)
    assert outcome.result is Result.PASS, outcome_text(outcome)
    assert run(suite, cluster.client_uri()).result is Result.FAIL


def test_queries_of_chunks_as_in_earlier_versions(cluster: RunningCluster, tmp_path: Path) -> None:
    suite = tmp_path / "chunks.js"
    suite.write_text(QUERIES_OF_CHUNKS)
    outcome = run(suite, cluster.client_uri(), compat="4.4")
    assert outcome.result is Result.PASS, outcome_text(outcome)
    assert run(suite, cluster.client_uri()).result is Result.FAIL
