"""Verification: alone between any two deployments, and always on while a replication follows."""

import json

from bson.json_util import dumps

from shardwright.sync.replication import Replication
from shardwright.sync.rounds import Round
from tests.sync.running import Ends, SyncProcess, contents, run_sync
from tests.sync.writers import DATABASE, prepare, writing

ITEMS = f"{DATABASE}.items"


def verification(process: SyncProcess) -> dict[str, object]:
    """The findings after one more comparison."""
    done = run_sync(process.directory, "verify", process.id)
    assert done.status in (0, 2), done.errors
    found: dict[str, object] = json.loads(done.output)["verification"]
    return found


def test_verify_alone_names_what_differs(ends: Ends) -> None:
    prepare(ends.source)
    assert ends.run().status == 0
    assert run_sync(ends.directory, "verify", *ends.uris).status == 0
    target = ends.target[DATABASE]
    target["items"].delete_one({"_id": 1})
    target["items"].update_one({"_id": 2}, {"$set": {"n": 2.0}})
    target["items"].insert_one({"_id": "extra"})
    target["items"].drop_index("n_1")
    target.command("collMod", "few", viewOn="items", pipeline=[])
    target.command("collMod", "accounts", validator={"balance": {"$gt": 0}})
    target["more"].insert_one({})
    done = run_sync(ends.directory, "verify", *ends.uris)
    assert done.status == 2
    everything = json.loads(done.output)["collections"]
    found = everything[ITEMS]
    assert (found["missing"], found["different"], found["extra"]) == (1, 1, 1)
    assert (found["documents"], found["targetDocuments"]) == (2000, 2000)
    assert sorted(found["ids"], key=str) == [1, 2, "extra"]
    assert found["problems"] == ["the index n_1 is missing or different at the target"]
    assert everything[f"{DATABASE}.few"]["problems"] == ["the option pipeline is different at the target"]
    assert everything[f"{DATABASE}.accounts"]["problems"] == ["the option validator is different at the target"]
    assert everything[f"{DATABASE}.more"]["problems"] == ["it is only at the target"]
    assert everything[f"{DATABASE}.more"]["extra"] == 1


def test_verify_alone_continues_where_it_was_interrupted(ends: Ends) -> None:
    prepare(ends.source)
    done = Round()
    done.next([ITEMS])
    done.passed()
    place = ends.directory / "shardwright" / "sync" / f"verify-{Replication(*ends.uris).id}.json"
    place.parent.mkdir(parents=True)
    place.write_text(dumps(done.stored()))
    found = json.loads(run_sync(ends.directory, "verify", *ends.uris).output)["collections"]
    assert found[ITEMS]["documents"] == 0
    assert found[f"{DATABASE}.accounts"]["missing"] == 10
    assert not place.exists()


def test_verify_alone_under_a_workload_uses_the_moments_of_the_replication(ends: Ends) -> None:
    prepare(ends.source)
    with writing(ends.source, seed=5, has_ddl=False) as workload, ends.syncing() as process:
        process.wait_followed(ends.source)
        done = run_sync(ends.directory, "verify", *ends.uris)
        assert done.status == 0, done.output
        workload.stop()


def test_differences_are_found_while_following_stop_a_commit_and_can_be_repaired(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress.get("verification", {}).get("complete"))
        # Someone writes at the target, which the rounds find.
        ends.target[DATABASE].items.update_one({"_id": 1}, {"$set": {"n": -1}})
        ends.target[DATABASE].items.delete_one({"_id": 2})
        found = verification(process)
        assert found["equal"] is False
        assert sorted(found["collections"][ITEMS]["ids"]) == [1, 2]  # type: ignore[index]
        progress = process.wait_for(lambda progress: not progress["verification"]["equal"])
        assert progress["verification"]["mismatches"] == 2
        assert run_sync(ends.directory, "commit", process.id).status == 0
        process.wait_for(lambda progress: "differ" in (progress["error"] or ""))
        assert process.lines[-1]["state"] == "RUNNING"
        ends.source[DATABASE].items.insert_one({"_id": "not blocked"})
        assert run_sync(ends.directory, "pause", process.id).status == 0
        assert run_sync(ends.directory, "resume", process.id, "--retry-failures").status == 0
        assert verification(process)["equal"] is True
        assert contents(ends.target) == contents(ends.source)
        assert run_sync(ends.directory, "commit", process.id).status == 0
        process.wait_for(lambda progress: progress["state"] == "COMMITTED")


def test_a_round_continues_after_an_interruption_and_compares_what_was_written_before_it(ends: Ends) -> None:
    prepare(ends.source)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress.get("verification", {}).get("complete"))
        ends.source[DATABASE].items.update_one({"_id": 1}, {"$set": {"n": 5}})
        process.wait_followed(ends.source)
        process.kill()
    ends.target[DATABASE].items.update_one({"_id": 1}, {"$set": {"n": 6}})
    with ends.syncing() as process:
        progress = process.wait_for(lambda progress: progress.get("verification", {}).get("rounds", 0) > 0)
        assert progress["verification"]["complete"]
        process.wait_for(lambda progress: progress["verification"]["mismatches"] == 1)
