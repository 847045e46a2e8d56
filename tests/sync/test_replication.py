"""``shardwright sync`` between real clusters, while their data and shape change."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.genuine_cluster import GenuineCluster, genuine_cluster
from tests.sync.running import Client, SyncProcess, contents, replica_set, run_sync, syncing
from tests.sync.writers import DATABASE, TOTAL, prepare, writing

if TYPE_CHECKING:
    from tests.local_cluster import RunningCluster

OWN = "shardwright"


@pytest.fixture(scope="module")
def plain(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two replica sets."""
    directory = tmp_path_factory.mktemp("plain")
    with ExitStack() as sets:
        first, second = [sets.enter_context(replica_set(mongod_binary, directory, each)) for each in ("one", "two")]
        yield first, second


@pytest.fixture(scope="module")
def genuine(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenuineCluster]:
    """A genuine sharded cluster behind a router of ours."""
    with genuine_cluster(mongod_binary, tmp_path_factory.mktemp("genuine"), routers=1) as running:
        yield running


class Ends:
    """A source and a target, both empty."""

    def __init__(self, source: str, target: str, directory: Path) -> None:
        self.uris = source, target
        self.directory = directory
        self.source: Client = MongoClient(source)
        self.target: Client = MongoClient(target)

    def empty(self) -> None:
        """Drop everything."""
        for client in (self.source, self.target):
            for name in client.list_database_names():
                if name not in ("admin", "config", "local"):
                    client.drop_database(name)

    def close(self) -> None:
        """Leave nothing."""
        self.source.admin.command({"setUserWriteBlockMode": 1, "global": False})
        self.empty()
        self.source.close()
        self.target.close()

    def syncing(self, *options: str) -> Any:  # noqa: ANN401 - a context manager
        """Follow continuously."""
        return syncing(self.directory, *self.uris, "--continuous", *options)

    def run(self, *options: str) -> Any:  # noqa: ANN401 - what `run_sync` returns
        """Replicate once."""
        return run_sync(self.directory, *self.uris, *options)


@pytest.fixture(params=["set-cluster", "cluster-set", "genuine-set", "set-set", "genuine-cluster"])
def every_ends(request: pytest.FixtureRequest, plain: tuple[str, str], tmp_path: Path) -> Iterator[Ends]:
    """Each kind of source and target."""

    def uri(kind: str, number: int) -> str:
        if kind == "set":
            return plain[number]
        if kind == "genuine":
            found: GenuineCluster = request.getfixturevalue("genuine")
            return found.uri()
        running: RunningCluster = request.getfixturevalue("cluster")
        return running.uri

    source, target = request.param.split("-")
    ends = Ends(uri(source, 0), uri(target, 1), tmp_path)
    ends.empty()
    yield ends
    ends.close()


@pytest.fixture
def ends(plain: tuple[str, str], tmp_path: Path) -> Iterator[Ends]:
    """Two replica sets."""
    found = Ends(*plain, tmp_path)
    found.empty()
    yield found
    found.close()


def total_at(client: Client, progress: Any) -> int:  # noqa: ANN401 - a document
    """The sum of all balances that the target had at its last consistent time."""
    time = progress["lastConsistentTime"]["target"]
    command = {"find": "accounts", "readConcern": {"level": "snapshot", "atClusterTime": time}}
    found = client[DATABASE].command(command)["cursor"]["firstBatch"]
    return sum(each["balance"] for each in found)


def wait_equal(ends: Ends, process: SyncProcess) -> None:
    """The target has everything, once the source is left alone."""
    process.wait_followed(ends.source)
    assert contents(ends.target) == contents(ends.source)


@pytest.mark.matrix(share=0.4)
def test_copy_and_follow_under_a_workload(every_ends: Ends) -> None:
    ends = every_ends
    prepare(ends.source)
    with writing(ends.source, seed=1) as workload, ends.syncing() as process:
        process.wait_followed(ends.source)
        for _ in range(3):
            assert total_at(ends.target, process.wait_followed(ends.source)) == TOTAL
        workload.stop()
        wait_equal(ends, process)
        assert workload.writes


def test_kill_during_the_copy_and_while_following(ends: Ends) -> None:
    prepare(ends.source, documents=12_000)
    with writing(ends.source, seed=2) as workload:
        for condition in (
            lambda progress: progress["counters"]["documents_written"] > 0,
            lambda progress: progress["lastConsistentTime"] is not None,
        ):
            with ends.syncing("--workers", "1") as process:
                process.wait_for(lambda progress, condition=condition: "counters" in progress and condition(progress))
                process.kill()
        with ends.syncing() as process:
            first = process.wait_followed(ends.source)
            assert total_at(ends.target, first) == TOTAL
            assert first["counters"]["documents_read"] < 6000
            workload.stop()
            wait_equal(ends, process)


def test_two_processes_at_once_and_the_second_takes_over(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing() as first:
        first.wait_followed(ends.source)
        with ends.syncing() as second:
            second.wait_for(lambda progress: progress.get("lastConsistentTime") is not None)
            ends.source[DATABASE].items.insert_one({"_id": "new"})
            first.wait_followed(ends.source)
            first.kill()
            ends.source[DATABASE].items.delete_one({"_id": "new"})
            wait_equal(ends, second)


def test_a_process_that_was_stopped_for_long_writes_nothing(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing() as first:
        first.wait_followed(ends.source)
        first.process.send_signal(signal.SIGSTOP)
        with ends.syncing() as second:
            second.wait_for(lambda progress: progress.get("eventsApplied") is not None)
            ends.source[DATABASE].items.update_many({}, {"$set": {"late": 1}})
            second.wait_followed(ends.source)
            first.process.send_signal(signal.SIGCONT)
            first.process.wait(60)
            assert "has taken over" in first.errors or "in time" in first.errors
            wait_equal(ends, second)


@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_lost_checkpoint_leads_to_a_comparison(ends: Ends, lost: str) -> None:
    prepare(ends.source)
    assert ends.run().status == 0
    client = ends.source if lost == "source" else ends.target
    client[OWN].sync.delete_many({})
    ends.source[DATABASE].items.delete_one({"_id": 1})
    ends.target[DATABASE].items.update_one({"_id": 2}, {"$set": {"stale": 1}})
    ends.target[DATABASE].items.insert_one({"_id": "extra"})
    done = ends.run("--json", *(("--existing", "merge") if lost == "target" else ()))
    assert done.status == 0, done.errors
    counters = json.loads(done.output.splitlines()[-1])["counters"]
    assert counters["documents_written"] < 20
    assert contents(ends.target) == contents(ends.source)


def test_nothing_is_written_if_nothing_has_changed(ends: Ends) -> None:
    prepare(ends.source)
    assert ends.run().status == 0
    before = ends.target[OWN].sync.find_one()
    assert before is not None
    assert ends.run().status == 0
    after = ends.target[OWN].sync.find_one()
    assert after is not None
    assert after["session_id"] == before["session_id"]


def test_documents_that_are_refused_do_not_stop_the_rest(ends: Ends) -> None:
    prepare(ends.source)
    ends.target[DATABASE].create_collection("items", validator={"n": {"$ne": 7}})
    with ends.syncing() as process:
        process.wait_followed(ends.source)
        failed = json.loads(run_sync(ends.directory, "failures", process.id).output)["failures"]
        assert [each["code"] for each in failed] == [121]
        assert ends.target[DATABASE].items.count_documents({}) == 1999
        ends.target[DATABASE].command("collMod", "items", validator={})
        assert run_sync(ends.directory, "pause", process.id).status == 0
        assert run_sync(ends.directory, "resume", process.id, "--retry-failures").status == 0
        assert json.loads(run_sync(ends.directory, "failures", process.id).output)["failures"] == []
        assert ends.target[DATABASE].items.count_documents({}) == 2000


def test_a_refusal_writes_nothing(ends: Ends) -> None:
    prepare(ends.source)
    ends.source[DATABASE].create_collection("log", capped=True, size=4096)
    ends.target[DATABASE].items.insert_one({"_id": 1})
    done = ends.run()
    assert done.status == 1
    assert f"{DATABASE}.log is capped" in done.errors
    assert f"{DATABASE}.items has documents" in done.errors
    assert ends.target.list_database_names() == ["admin", "busy", "config", "local", "shardwright"]
    assert ends.target[DATABASE].list_collection_names() == ["items"]
    done = ends.run("--existing", "merge", "--exclude", f"{DATABASE}.log")
    assert done.status == 0, done.errors


def test_commit_hands_over(ends: Ends) -> None:
    prepare(ends.source)
    ends.source[DATABASE].items.create_index("at", expireAfterSeconds=5)
    with writing(ends.source, seed=3, has_ddl=False) as workload, ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        committed = run_sync(ends.directory, "commit", process.id)
        assert committed.status == 0, committed.errors
        progress = process.wait_for(lambda progress: progress["state"] == "COMMITTED")
        assert progress["canWrite"]
        assert 0 < progress["pauseSeconds"] < 10
        assert process.process.wait(60) == 0
        workload.stop()
        assert workload.is_blocked
    with pytest.raises(OperationFailure):
        ends.source[DATABASE].items.insert_one({})
    assert contents(ends.target) == contents(ends.source)
    index = ends.target[DATABASE].items.index_information()["at_1"]
    assert index["expireAfterSeconds"] == 5


def test_verify_alone_names_what_differs(ends: Ends) -> None:
    prepare(ends.source)
    assert ends.run().status == 0
    assert run_sync(ends.directory, "verify", *ends.uris).status == 0
    ends.target[DATABASE].items.delete_one({"_id": 1})
    ends.target[DATABASE].items.update_one({"_id": 2}, {"$set": {"n": 2.0}})
    ends.target[DATABASE].items.insert_one({"_id": "extra"})
    ends.target[DATABASE].items.drop_index("n_1")
    done = run_sync(ends.directory, "verify", *ends.uris)
    assert done.status == 2
    found = json.loads(done.output)["collections"][f"{DATABASE}.items"]
    assert (found["missing"], found["different"], found["extra"]) == (1, 1, 1)
    assert sorted(found["ids"], key=str) == [1, 2, "extra"]
    assert found["problems"] == ["the index n_1 is missing or different at the target"]
