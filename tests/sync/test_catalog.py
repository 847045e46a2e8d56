"""Collections, views, indexes and options that change at the source, are refused, or were at the target before."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from bson.code import Code

from tests.sync.conftest import ends_of
from tests.sync.running import Ends, SyncProcess, contents, run_sync
from tests.sync.surviving import SLOW_COPY, copied
from tests.sync.writers import DATABASE, prepare

OWN: Final = "shardwright"
OTHER: Final = "elsewhere"


def wait_equal(ends: Ends, process: SyncProcess) -> None:
    """Wait until the target has everything, including changes found only by a comparison of the catalogs."""
    process.wait_followed(ends.source)
    process.wait_for(lambda _: contents(ends.target) == contents(ends.source))
    report = run_sync(ends.directory, "verify", process.id)
    assert report.status == 0, report.output


def test_a_collection_renamed_into_the_selection_is_copied(ends: Ends) -> None:
    """Renames onto a free name and onto a replicated collection, during the copy and afterwards."""
    prepare(ends.source)
    for name in ("first", "second", "third"):
        ends.source[OTHER][name].insert_many([{"_id": each, "from": name} for each in range(1500)])
        ends.source[OTHER][name].create_index("from")

    def rename(name: str, to: str) -> None:
        names = {"renameCollection": f"{OTHER}.{name}", "to": f"{DATABASE}.{to}", "dropTarget": True}
        ends.source.admin.command(names)

    with ends.syncing("--include", DATABASE) as process:
        process.wait_for(lambda progress: progress["canCommit"])
        rename("first", "added")
        process.wait_for(lambda _: ends.target[DATABASE].added.count_documents({}) == 1500)
        process.wait_followed(ends.source)
        rename("second", "items")
        ends.source[DATABASE].items.insert_one({"_id": "after"})
        process.wait_followed(ends.source)
        rename("third", "added")
        ends.source[DATABASE].added.delete_one({"_id": 7})
        process.wait_followed(ends.source)
        ends.source.drop_database(OTHER)
        wait_equal(ends, process)


@pytest.mark.parametrize("returns", [False, True], ids=["gone", "made again"])
def test_a_collection_is_gone_that_a_renamed_one_replaced_before_it_was_dropped(ends: Ends, *, returns: bool) -> None:
    prepare(ends.source)
    items, other = ends.source[DATABASE].items, ends.source[DATABASE].other
    with ends.syncing("--exclude", other.full_name) as process:
        process.wait_for(lambda progress: progress["canCommit"])
        assert run_sync(ends.directory, "pause", process.id).status == 0
        other.insert_one({"_id": "other"})
        other.rename("items", dropTarget=True)
        items.drop()
        if returns:
            items.insert_one({"_id": "again"})
        assert run_sync(ends.directory, "resume", process.id).status == 0
        process.wait_followed(ends.source)
        assert list(ends.target[DATABASE].items.find()) == list(items.find())
        wait_equal(ends, process)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("kinds", ["set-set", "set-cluster"])
def test_a_collection_that_is_made_again_while_it_is_copied(
    kinds: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ends_of(request, kinds, tmp_path) as ends:
        prepare(ends.source, 6000)
        items = ends.source[DATABASE].items
        with ends.syncing(*SLOW_COPY) as process:
            process.wait_for(lambda progress: copied(progress) > 100)
            for each in range(3):
                items.drop()
                items.insert_many([{"_id": number, "round": each} for number in range(3000)])
                items.create_index("round")
                items.rename("away")
                ends.source[DATABASE].away.rename("items")
            ends.source[DATABASE].accounts.rename("items", dropTarget=True)
            items.insert_many([{"round": "last"} for _ in range(10)])
            process.wait_for(lambda progress: progress["canCommit"])
            wait_equal(ends, process)


def test_views_change_and_become_collections(ends: Ends) -> None:
    prepare(ends.source)
    database = ends.source[DATABASE]
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        database.command("collMod", "few", viewOn="items", pipeline=[{"$match": {"n": 2}}])
        database.create_collection("more", viewOn="items", pipeline=[])
        wait_equal(ends, process)
        database.few.drop()
        database.few.insert_one({"_id": 1})
        database.more.drop()
        database.words.drop()
        database.create_collection("words", viewOn="items", pipeline=[])
        wait_equal(ends, process)


def test_a_view_that_changes_while_no_process_runs(ends: Ends) -> None:
    prepare(ends.source)
    database = ends.source[DATABASE]
    assert ends.run().status == 0
    database.command("collMod", "few", viewOn="items", pipeline=[{"$match": {"n": 2}}])
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        ends.target[DATABASE].few.drop()
        process.wait_for(lambda progress: contents(ends.target) == contents(ends.source))


@pytest.mark.parametrize("follows", [True, False], ids=["follow", "resume"])
def test_order_counts_in_indexes_and_validators(ends: Ends, *, follows: bool) -> None:
    prepare(ends.source)
    database = ends.source[DATABASE]
    database.items.create_index([("a", 1), ("b", 1)], name="both", partialFilterExpression={"a": {"$gt": 1, "$lt": 5}})
    database.create_collection("checked", validator={"a": {"$gt": 0}, "b": {"$gt": 0}})

    def change() -> None:
        database.items.drop_index("both")
        database.items.create_index([("b", 1), ("a", 1)], name="both")
        database.command("collMod", "checked", validator={"b": {"$gt": 0}, "a": {"$gt": False}})

    if not follows:
        assert ends.run().status == 0
        change()
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        if follows:
            change()
        wait_equal(ends, process)
        assert list(ends.target[DATABASE].items.index_information()["both"]["key"]) == [("b", 1), ("a", 1)]


REFUSED: Final[dict[str, dict[str, Any]]] = {
    "capped": {"capped": True, "size": 4096},
    "timeseries": {"timeseries": {"timeField": "t"}},
}


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_new_collection_that_cannot_be_carried_is_named(ends: Ends, kind: str) -> None:
    prepare(ends.source)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        ends.source[DATABASE].create_collection("log", **REFUSED[kind])
        process.wait_for(lambda progress: any(f"{DATABASE}.log" in each for each in progress["notes"]))
        process.kill()
    # The note stays, and a comparison of the ends does not create the collection either.
    ends.source[OWN].sync.delete_many({})
    with ends.syncing() as process:
        progress = process.wait_for(lambda progress: progress["canCommit"])
        assert any(f"{DATABASE}.log" in each for each in progress["notes"])
        assert "log" not in ends.target[DATABASE].list_collection_names()
        ends.source[DATABASE].log.drop()
        process.wait_for(lambda progress: not any(f"{DATABASE}.log" in each for each in progress["notes"]))


def test_what_was_dropped_or_renamed_in_a_lost_history_is_dropped(ends: Ends) -> None:
    prepare(ends.source)
    database = ends.source[DATABASE]
    database["system.js"].insert_one({"_id": "f", "value": Code("function () {}")})
    for name in ("dropped", "renamed", "again"):
        database[name].insert_many([{"_id": each, "from": name} for each in range(10)])
    options = ("--exclude", f"{DATABASE}.system.js")
    assert ends.run(*options).status == 0
    database.dropped.drop()
    database.renamed.rename("new")
    database.again.drop()
    database.again.insert_one({"_id": "x"})
    ends.source[OWN].sync.delete_many({})
    done = ends.run(*options, "--json")
    assert done.status == 0, done.errors
    assert contents(ends.target) == contents(ends.source)
    assert "system.js" not in ends.target[DATABASE].list_collection_names()
    assert json.loads(done.output.splitlines()[-1])["verification"]["equal"]


def test_a_kill_while_planning_leaves_no_collection_unfollowed(ends: Ends) -> None:
    """The next process does not mistake collections created before the kill for the target's own."""
    prepare(ends.source)
    database = ends.source[DATABASE]
    for each in range(60):
        database[f"c{each:02}"].create_index("a", name="old")
    with ends.syncing() as process:
        while "c30" not in ends.target[DATABASE].list_collection_names():
            assert process.process.poll() is None, process.errors
        process.kill()
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        database.c01.drop_index("old")
        database.command("collMod", "c02", validator={"a": 1})
        wait_equal(ends, process)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"viewOn": "items", "pipeline": []}, "is a view at the target"),
        ({"capped": True, "size": 4096}, "is capped at the target"),
        ({"timeseries": {"timeField": "t"}}, "is a timeseries at the target"),
        ({"collation": {"locale": "fr"}}, "has another collation at the target"),
    ],
)
def test_a_target_that_cannot_be_made_equal_is_refused(ends: Ends, options: dict[str, Any], reason: str) -> None:
    prepare(ends.source)
    ends.target[DATABASE].create_collection("accounts", **options)
    done = ends.run("--existing", "merge")
    assert done.status == 1
    assert f"{DATABASE}.accounts {reason}" in done.errors
    assert "items" not in ends.target[DATABASE].list_collection_names()


def test_a_collection_that_was_sharded_at_the_target_before_keeps_its_key(to_cluster: Ends) -> None:
    ends = to_cluster
    prepare(ends.source)
    ends.target.admin.command("shardCollection", f"{DATABASE}.items", key={"n": 1})
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        ends.source[DATABASE].items.insert_many([{"_id": f"new{each}", "n": each} for each in range(10)])
        ends.source[DATABASE].items.update_many({"n": {"$lt": 10}}, {"$inc": {"n": 5000}})
        process.wait_followed(ends.source)
        found, wanted = contents(ends.target), contents(ends.source)
        assert found[f"{DATABASE}.items"][0] == wanted[f"{DATABASE}.items"][0]
        assert process.lines[-1]["counters"]["write_failures"] == 0
        report = run_sync(ends.directory, "verify", process.id)
        assert report.status == 0, report.output
        ends.source[DATABASE].items.rename("things")
        ends.source[DATABASE].things.insert_one({"_id": "later", "n": 3})
        process.wait_followed(ends.source)
        assert ends.target[DATABASE].things.count_documents({}) == 2011
        report = run_sync(ends.directory, "verify", process.id)
        assert report.status == 0, report.output


def test_a_renamed_collection_keeps_the_indexes_that_the_target_had(ends: Ends) -> None:
    """Its indexes and options stay only under the new name, also after another process resumes."""
    prepare(ends.source)
    source, target = ends.source[DATABASE], ends.target[DATABASE]
    for name in ("items", "accounts"):
        target[name].insert_one({"_id": "own"})
        target[name].create_index("own")
    with ends.syncing("--existing", "merge") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        source.items.rename("things")
        source.accounts.drop()
        for name in ("items", "accounts"):
            source[name].insert_one({"_id": 1})
        process.wait_followed(ends.source)
        process.kill()
    with ends.syncing("--existing", "merge") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        for name in ("items", "accounts"):
            source.command("collMod", name, validator={"_id": {"$ne": 7}})
        process.wait_followed(ends.source)
        assert "own_1" in target.things.index_information()
        found, wanted = contents(ends.target), contents(ends.source)
        for name in ("items", "accounts"):
            assert found[f"{DATABASE}.{name}"] == wanted[f"{DATABASE}.{name}"]
        report = run_sync(ends.directory, "verify", process.id)
        assert report.status == 0, report.output


def test_a_rename_to_another_database(to_cluster: Ends) -> None:
    """At the target the collection is sharded, and the databases have different primary shards."""
    ends = to_cluster
    prepare(ends.source)
    for name, shard in zip((DATABASE, OTHER), sorted(ends.target.config.shards.distinct("_id")), strict=True):
        ends.target.admin.command("enableSharding", name, primaryShard=shard)
    with ends.syncing("--shard", f'{DATABASE}.items={{"_id": 1}}') as process:
        process.wait_for(lambda progress: progress["canCommit"])
        for name in ("items", "accounts"):
            ends.source.admin.command("renameCollection", f"{DATABASE}.{name}", to=f"{OTHER}.{name}")
            ends.source[OTHER][name].insert_one({"_id": "after"})
            ends.source[DATABASE][name].insert_one({"_id": "again"})
        wait_equal(ends, process)


def test_collections_in_databases_of_the_deployment_are_named(ends: Ends) -> None:
    prepare(ends.source)
    names = [f"{database}.left" for database in ("admin", "local", OWN)]
    try:
        for name in names:
            # A driver's insert would have a session, which `local` refuses.
            ends.source[name.partition(".")[0]].command("insert", "left", documents=[{}])
        done = ends.run("--json", "--exclude", names[-1])
        notes = json.loads(done.output.splitlines()[-1])["notes"]
        assert [each for each in notes if ".left " in each] == [
            f"{name} is not replicated: its database belongs to the deployment" for name in names[:-1]
        ]
        assert not [each for each in notes if "its database" in each and ".left " not in each]
    finally:
        for name in names:
            ends.source[name.partition(".")[0]].left.drop()
