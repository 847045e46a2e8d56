"""Going back: the roles swap after a commit, without a new copy."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from tests.sync.running import Client, Ends, SyncProcess, contents, replica_set, run_sync
from tests.sync.writers import DATABASE, prepare, writing


def commit(ends: Ends, process: SyncProcess) -> None:
    done = run_sync(ends.directory, "commit", process.id)
    assert done.status == 0, done.errors


def test_roles_swap_and_swap_again(ends: Ends) -> None:
    prepare(ends.source)
    ends.source[DATABASE].items.create_index("at", expireAfterSeconds=3600)
    with ends.syncing("--reversible") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        refused = run_sync(ends.directory, "reverse", process.id)
        assert refused.status == 1
        assert "cannot reverse" in refused.errors
        commit(ends, process)
        process.wait_for(lambda progress: progress["state"] == "COMMITTED" and progress["canReverse"])
        # Applications write at the target between the commit and the reversal, which changes its shape as well.
        ends.target[DATABASE].items.update_many({"n": {"$lt": 10}}, {"$set": {"moved": 1}})
        ends.target[DATABASE].words.rename("terms")
        ends.target[DATABASE].terms.create_index("x")
        ends.target[DATABASE].later.insert_one({"_id": 1})
        assert run_sync(ends.directory, "reverse", process.id).status == 0
        with writing(ends.target, seed=4) as workload:
            process.wait_for(lambda progress: progress["state"] == "RUNNING" and progress.get("lastConsistentTime"))
            process.kill()
            with ends.syncing("--reversible") as again:
                progress = again.wait_followed(ends.target)
                assert progress["counters"]["documents_read"] < 500
                assert progress["directionMapping"]["Source"] in ends.uris[1]
                workload.stop()
                again.wait_followed(ends.target)
                assert contents(ends.source) == contents(ends.target)
                assert ends.source[DATABASE].items.index_information()["at_1"]["expireAfterSeconds"] > 3600
                again.wait_for(lambda progress: progress["canCommit"])
                commit(ends, again)
                again.wait_for(lambda progress: progress["state"] == "COMMITTED")
                with pytest.raises(OperationFailure):
                    ends.target[DATABASE].items.insert_one({})
                ends.source[DATABASE].items.insert_one({"_id": "home"})
                assert ends.source[DATABASE].items.index_information()["at_1"]["expireAfterSeconds"] == 3600
                assert run_sync(ends.directory, "reverse", again.id).status == 0
                again.wait_followed(ends.source)
                assert contents(ends.target) == contents(ends.source)


def wait_ttl_passes(client: Client, process: SyncProcess) -> None:
    """Wait until the TTL monitor has completed a pass that began after now."""

    def passes() -> int:
        found: int = client.admin.command("serverStatus")["metrics"]["ttl"]["passes"]
        return found

    until = passes() + 2
    process.wait_for(lambda _: passes() >= until)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocked", "not blocked"])
def test_documents_that_live_on_at_the_new_side_do_not_expire_at_the_old_one(
    mongod_binary: str, tmp_path: Path, *, blocks: bool
) -> None:
    options = ("--setParameter", "ttlMonitorSleepSecs=1", "--setParameter", "ttlMonitorEnabled=false")
    with (
        replica_set(mongod_binary, tmp_path, "old", *options) as old,
        replica_set(mongod_binary, tmp_path, "new", *options) as new,
        closing(Ends(old, new, tmp_path)) as ends,
    ):
        sessions, refreshed = ends.source[DATABASE].sessions, ends.target[DATABASE].sessions
        sessions.create_index("seen", expireAfterSeconds=3600)
        sessions.insert_many([{"_id": each, "seen": datetime(2020, 1, 1, tzinfo=UTC)} for each in range(50)])
        with ends.syncing("--reversible", *(() if blocks else ("--no-write-block",))) as process:
            process.wait_for(lambda progress: progress["canCommit"])
            commit(ends, process)
            process.wait_for(lambda progress: progress["state"] == "COMMITTED" and progress["canReverse"])
            refreshed.update_many({}, {"$set": {"seen": datetime.now(UTC)}})
            if not blocks:
                process.wait_for(lambda _: sessions.index_information()["seen_1"]["expireAfterSeconds"] > 3600)
                sessions.delete_one({"_id": 7})  # as the TTL monitor may do before that
            ends.source.admin.command("setParameter", 1, ttlMonitorEnabled=True)
            wait_ttl_passes(ends.source, process)
            assert run_sync(ends.directory, "reverse", process.id).status == 0
            process.wait_for(lambda progress: progress["state"] == "RUNNING" and progress.get("lastConsistentTime"))
            process.wait_followed(ends.target)
            wait_ttl_passes(ends.source, process)
            assert contents(ends.source) == contents(ends.target)
            assert sessions.count_documents({}) == 50


def test_a_committed_replication_stays_committed(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing("--reversible") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        commit(ends, process)
        process.wait_for(lambda progress: progress["state"] == "COMMITTED")
        process.kill()
    ends.source.admin.command({"setUserWriteBlockMode": 1, "global": False})
    ends.source[DATABASE].items.insert_one({"_id": "too late"})
    done = ends.run("--continuous", "--json")
    assert done.status == 0, done.errors
    assert json.loads(done.output.splitlines()[-1])["state"] == "COMMITTED"
    assert ends.target[DATABASE].items.find_one({"_id": "too late"}) is None


def test_only_a_reversible_replication_is_reversed(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        done = run_sync(ends.directory, "reverse", process.id)
        assert "was not started with --reversible" in done.errors
