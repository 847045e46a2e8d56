"""A source whose oplog no longer has the changes that are needed: both ends are compared, and nothing starts over."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sync.running import Ends, contents, replica_set
from tests.sync.writers import DATABASE, prepare

OPLOG = "--oplogSize=1", "--syncdelay=1"
"""A mongod keeps the oplog since its last checkpoint, so checkpoints have to be frequent for it to be truncated."""

DOCUMENTS = 3000


@pytest.fixture
def small(mongod_binary: str, plain: tuple[str, str], tmp_path: Path) -> Iterator[Ends]:
    """From a replica set with an oplog of one megabyte."""
    with replica_set(mongod_binary, tmp_path, "small", *OPLOG) as source:
        ends = Ends(source, plain[1], tmp_path)
        ends.empty()
        yield ends
        ends.close()


def roll_over(ends: Ends) -> None:
    """Write until the oplog has nothing that it had before."""
    oplog = ends.source["local"]["oplog.rs"]
    last = ends.source.admin.command("ping")["operationTime"]
    filler = ends.source["unfollowed"].filler
    for _ in range(1000):
        filler.insert_many([{"text": "x" * 60_000} for _ in range(10)])
        filler.drop()
        first = oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        assert first is not None
        if first["ts"] > last:
            return
    raise AssertionError("the oplog does not roll over")


def test_a_rolled_over_oplog_leads_to_a_comparison(small: Ends) -> None:
    ends = small
    prepare(ends.source, DOCUMENTS)
    options = ("--exclude", "unfollowed", "--json")
    assert ends.run(*options).status == 0
    ends.source[DATABASE].items.update_many({"n": {"$lt": 10}}, {"$set": {"late": 1}})
    ends.source[DATABASE].items.delete_one({"n": 100})
    roll_over(ends)
    done = ends.run(*options)
    assert done.status == 0, done.errors
    assert "lost the history" in done.errors
    counters = json.loads(done.output.splitlines()[-1])["counters"]
    assert counters["documents_written"] < 20
    assert contents(ends.target) == {
        name: each for name, each in contents(ends.source).items() if not name.startswith("unfollowed.")
    }


def test_a_replication_that_falls_off_while_it_runs_compares_by_itself(small: Ends) -> None:
    ends = small
    prepare(ends.source, DOCUMENTS)
    with ends.syncing("--exclude", "unfollowed") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        process.process.send_signal(signal.SIGSTOP)
        ends.source[DATABASE].items.update_many({"n": {"$lt": 10}}, {"$set": {"late": 1}})
        roll_over(ends)
        process.process.send_signal(signal.SIGCONT)
        process.wait_until(lambda: "lost the history" in process.errors)
        if process.process.poll() is None:
            process.wait_for(
                lambda progress: progress["canCommit"] and ends.target[DATABASE].items.find_one({"late": 1})
            )
    # The process that was stopped for longer than its lease has ended.
    done = ends.run("--exclude", "unfollowed")
    assert done.status == 0, done.errors
    assert "lost the history" in process.errors + done.errors
    assert ends.target[DATABASE].items.count_documents({"late": 1}) == 10
