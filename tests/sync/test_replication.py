"""``shardwright sync`` between real clusters, while their data and shape change."""

import json
import signal

import pytest
from pymongo.errors import OperationFailure

from tests.sync.moments import check_moment, pause_now, progress_now, random_moments
from tests.sync.running import Ends, SyncProcess, contents, run_sync
from tests.sync.writers import DATABASE, distribute, prepare, writing

OWN = "shardwright"
DOCUMENTS = 2000


def wait_equal(ends: Ends, process: SyncProcess) -> None:
    """The target has everything, once the source is left alone."""
    process.wait_followed(ends.source)
    assert contents(ends.target) == contents(ends.source)


@pytest.mark.matrix(share=0.1)
def test_copy_and_follow_under_a_workload(every_ends: Ends) -> None:
    """At random moments the target equals a state of the source, and at the end they are equal."""
    ends = every_ends
    if ends.source.admin.command("hello").get("msg") == "isdbgrid":
        distribute(ends.source, DOCUMENTS)
    prepare(ends.source, DOCUMENTS)
    with writing(ends.source, seed=1) as workload, ends.syncing() as process:
        process.wait_followed(ends.source)
        for progress in random_moments(process, seed=1):
            check_moment(ends, progress)
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
            check_moment(ends, first)
            assert first["counters"]["documents_read"] < 6000
            workload.stop()
            wait_equal(ends, process)


def test_a_document_that_the_target_has_already_costs_no_other_of_its_piece(ends: Ends) -> None:
    """As if a change that was applied ahead of the copy had inserted it."""
    documents, last = 30_000, 29_998
    prepare(ends.source, documents)
    with ends.syncing("--workers", "1", "--batch-documents", "50") as process:
        process.wait_until(lambda: bool(process.lines))
        while not progress_now(process).get("collectionCopy", {}).get("copiedDocuments"):
            assert process.process.poll() is None, process.errors
        pause_now(process)
        ends.target[DATABASE].items.insert_one({"_id": last, "n": -1})
        assert run_sync(ends.directory, "resume", process.id).status == 0
        process.wait_for(lambda progress: progress["canCommit"])
        progress = process.wait_followed(ends.source)
        assert contents(ends.target) == contents(ends.source)
        everything = sum(len(each[0]) for each in contents(ends.source).values() if isinstance(each, tuple))
        assert progress["counters"]["documents_read"] < everything + 10


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
            assert "has taken over" in first.errors
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
