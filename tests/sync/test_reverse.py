"""Going back: the roles swap after a commit, without a new copy."""

import json

import pytest
from pymongo.errors import OperationFailure

from tests.sync.running import Ends, SyncProcess, contents, run_sync
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
