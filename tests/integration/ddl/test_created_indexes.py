"""Indexes that are built on every shard, or on none."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

_HANG: Final = "hangAfterStartingIndexBuild"
"""A fail point of mongod, at which builds can be interrupted."""

_NOT_BEGUN: Final = "hangCreateIndexesBeforeStartingIndexBuild"
"""A fail point of mongod before a build begins."""


def names(mongod: Client, collection: Documents) -> set[str]:
    """Return the names of the indexes on one shard, including unfinished ones."""
    return set(mongod[collection.database.name][collection.name].index_information())


def built(mongod: Client, collection: Documents) -> set[str]:
    """The names of the indexes on one shard that have been built."""
    database = mongod[collection.database.name]
    listed = database.command("listIndexes", collection.name, includeBuildUUIDs=True)["cursor"]["firstBatch"]
    return {index["name"] for index in listed if "buildUUID" not in index}


def refused(collection: Documents, *indexes: Document) -> Document:
    """The reply to a ``createIndexes`` that fails."""
    with pytest.raises(OperationFailure) as failure:
        collection.database.command({"createIndexes": collection.name, "indexes": list(indexes)})
    assert failure.value.details is not None
    return dict(failure.value.details)


def test_indexes_that_one_shard_could_not_build_are_on_none(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": 600, "other": 1} for _ in range(2))
    placed.create_index("kept")
    before = names(lower_mongod, placed)
    unique = {"key": {"key": 1, "other": 1}, "name": "unique", "unique": True}
    kept = {"key": {"kept": 1}, "name": "kept_1"}
    reply = refused(placed, {"key": {"new": 1}, "name": "new"}, unique, kept)
    assert reply["code"] == ErrorCode.DuplicateKey
    assert len(reply["raw"]) == 2
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before
    placed.delete_one({"key": 600})
    placed.database.command({"createIndexes": placed.name, "indexes": [unique]})
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"unique"}


def test_a_shard_with_a_different_index_of_that_name_is_asked_first(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    upper_mongod[placed.database.name][placed.name].create_index("other", name="mine")
    reply = refused(placed, {"key": {"something": 1}, "name": "mine"})
    assert reply["code"] == ErrorCode.IndexKeySpecsConflict
    assert len(reply["raw"]) == 1
    assert "mine" not in names(lower_mongod, placed)


def test_different_changes_at_once_wait_for_each_other(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": key, "a": key, "b": key} for key in range(0, 1_000, 10))
    before = names(lower_mongod, placed)

    def create(*fields: str) -> None:
        indexes = [{"key": {field: 1}, "name": f"{field}_1"} for field in fields]
        placed.database.command({"createIndexes": placed.name, "indexes": indexes})

    with ThreadPoolExecutor() as threads:
        creations = [threads.submit(create, *each) for each in (("a", "b"), ("b", "a"), ("a",), ("b", "c"), ("c",))]
    assert [each.result() for each in creations] == [None] * 5
    created = names(lower_mongod, placed)
    assert created == names(upper_mongod, placed) == before | {"a_1", "b_1", "c_1"}
    with ThreadPoolExecutor() as threads:
        dropped = [threads.submit(placed.drop_index, f"{field}_1") for field in "abc"]
    assert [each.result() for each in dropped] == [None] * 3
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def test_an_index_is_dropped_while_it_is_being_built(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    before = names(lower_mongod, placed)
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _HANG) as point:
        creation = threads.submit(refused, placed, {"key": {"slow": 1}, "name": "slow_1"})
        point.wait_entered()
        placed.drop_index("slow_1")
        reply = creation.result()
    assert reply["code"] == ErrorCode.IndexBuildAborted
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def test_a_part_of_what_is_being_built_cannot_be_dropped(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    """As on a mongod, which builds all indexes of a command together."""
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    before = names(lower_mongod, placed)
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _NOT_BEGUN) as point:
        indexes = [{"key": {name: 1}, "name": name} for name in ("dropped", "kept")]
        creation = threads.submit(placed.database.command, {"createIndexes": placed.name, "indexes": indexes})
        point.wait_entered()
        eventually(lambda: "dropped" in built(lower_mongod, placed), what="one shard has built the indexes")
        with pytest.raises(OperationFailure, match="can't drop unfinished index with name: dropped") as failure:
            placed.drop_index("dropped")
        assert failure.value.code == ErrorCode.IndexNotFound
        point.turn_off()
        assert creation.result()["ok"] == 1
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"dropped", "kept"}


def test_a_failing_creation_does_not_drop_what_the_next_primary_shard_creates(
    placed: Documents, cluster: RunningCluster, lower_mongod: Client, upper_mongod: Client
) -> None:
    """The database moves when what its primary shard has begun is over."""
    database, admin = placed.database, placed.database.client.admin
    placed.insert_many({"key": 600, "other": 1} for _ in range(2))
    before = names(lower_mongod, placed)
    unique = {"key": {"key": 1, "other": 1}, "name": "unique", "unique": True}
    with cluster.direct("shard0.0.shardd") as daemon, ThreadPoolExecutor() as threads:

        def is_delayed() -> bool:
            lines = cluster.log("shard0.0.shardd").splitlines()
            return any("Creations of indexes are delaying" in line and database.name in line for line in lines)

        at = {"operationType": "createIndexes", "at": "dropBuiltIndexes"}
        with fail_point(daemon, "hangInDDLCoordinator", **at) as failing:
            failed = threads.submit(refused, placed, unique)
            failing.wait_entered()
            move = threads.submit(admin.command, "movePrimary", database.name, to=UPPER)
            eventually(lambda: move.done() or is_delayed(), what="the database has moved, or its move waits")
            placed.delete_one({"key": 600})
            # An equal command would join the first one.
            command = {"createIndexes": placed.name, "indexes": [unique], "comment": "another"}
            created = threads.submit(database.command, command)
            eventually(lambda: created.done() or is_delayed(), what="the index is there, or its creation waits")
        assert failed.result()["code"] == ErrorCode.DuplicateKey
        assert created.result()["ok"] == move.result()["ok"] == 1
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"unique"}
    admin.command("movePrimary", database.name, to=LOWER)


@pytest.mark.parametrize("index", ["*", ["*"], ["slow_1", "other_1"], ["other_1", "slow_1"]], ids=str)
@pytest.mark.parametrize("place", ["hangAfterStartingIndexBuild", "hangCreateIndexesBeforeStartingIndexBuild"])
def test_a_drop_of_several_ends_a_build_and_drops_the_rest(
    placed: Documents, lower_mongod: Client, upper_mongod: Client, index: str | list[str], place: str
) -> None:
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    before = names(lower_mongod, placed)
    placed.create_index("other")
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, place) as point:
        creation = threads.submit(refused, placed, {"key": {"slow": 1}, "name": "slow_1"})
        point.wait_entered()
        eventually(lambda: "slow_1" in built(lower_mongod, placed), what="one shard has built the index")
        drop = threads.submit(placed.database.command, {"dropIndexes": placed.name, "index": index})
        if place == _NOT_BEGUN:
            eventually(lambda: "slow_1" not in names(lower_mongod, placed), what="the build is aborted")
            point.turn_off()
        assert drop.result()["ok"] == 1
        assert creation.result()["code"] == ErrorCode.IndexBuildAborted
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


@pytest.mark.parametrize("slow", ["createIndexes", "dropIndexes"])
def test_an_index_that_exists_is_created_and_dropped_at_once(
    placed: Documents, lower_mongod: Client, upper_mongod: Client, slow: str
) -> None:
    """Whatever comes first, all shards have it or none, however long one of them takes for one of the commands."""
    placed.create_index("a")
    blocked = {**_failing(placed, slow, 0), "blockConnection": True, "blockTimeMS": 700}
    del blocked["errorCode"]
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, "failCommand", {"times": 1}, **blocked) as point:
        create, drop = partial(placed.create_index, "a"), partial(placed.drop_index, "a_1")
        running = threads.submit(create if slow == "createIndexes" else drop)
        point.wait_entered()
        if slow == "createIndexes":
            drop()
        else:
            create()
        running.result()
    assert names(lower_mongod, placed) == names(upper_mongod, placed)
    assert ("a_1" in names(lower_mongod, placed)) == (slow == "dropIndexes")


def test_an_index_that_is_being_built_does_not_replace_that_of_the_shard_key(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    before = names(lower_mongod, placed)
    placed.insert_many({"key": 600, "other": 1} for _ in range(2))
    unique = {"key": {"key": 1, "other": 1}, "name": "unique", "unique": True}
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _HANG) as point:
        creation = threads.submit(refused, placed, unique)
        point.wait_entered()
        eventually(lambda: "unique" in built(lower_mongod, placed), what="one shard has built the index")
        with pytest.raises(OperationFailure) as failure:
            placed.drop_index("key_1")
        assert failure.value.code == ErrorCode.CannotDropShardKeyIndex
        point.turn_off()
        assert creation.result()["code"] == ErrorCode.DuplicateKey
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def test_a_drop_reaches_the_shard_that_lacks_one_of_several(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    before = names(lower_mongod, placed)
    placed.create_index("a")
    placed.create_index("b")
    upper_mongod[placed.database.name][placed.name].drop_index("b_1")
    placed.database.command({"dropIndexes": placed.name, "index": ["a_1", "b_1"]})
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before
    placed.create_index("a")
    with pytest.raises(OperationFailure) as failure:
        placed.database.command({"dropIndexes": placed.name, "index": ["a_1", "none"]})
    assert failure.value.code == ErrorCode.IndexNotFound
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"a_1"}


def test_collections_are_not_renamed_nor_indexes_changed_while_one_is_being_built(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    before = names(lower_mongod, placed)
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _NOT_BEGUN) as point:
        creation = threads.submit(placed.create_index, "slow")
        point.wait_entered()
        with pytest.raises(OperationFailure, match="an index build is currently running") as failure:
            placed.rename("renamed")
        assert failure.value.code == ErrorCode.BackgroundOperationInProgressForNamespace
        hide = {"collMod": placed.name, "index": {"name": "slow_1", "hidden": True}}
        with pytest.raises(OperationFailure, match="an index build is currently running"):
            placed.database.command(hide)
        point.turn_off()
        creation.result()
    placed.database.command(hide)
    placed.rename("renamed")
    renamed = placed.database["renamed"]
    assert names(lower_mongod, renamed) == names(upper_mongod, renamed) == before | {"slow_1"}


@pytest.mark.parametrize("command", ["createIndexes", "dropIndexes"])
def test_a_shard_is_asked_again_until_its_majority_has_what_it_did(
    placed: Documents, lower_mongod: Client, upper_mongod: Client, command: str
) -> None:
    """A primary that steps down says so in ``writeConcernError``, and the next one may not have it."""
    before = names(lower_mongod, placed)
    if command == "dropIndexes":
        placed.create_index("a")
    lost = {"code": ErrorCode.InterruptedDueToReplStateChange, "errmsg": "stepped down"}
    failing = {"failCommands": [command], "failInternalCommands": True, "namespace": placed.full_name}
    with fail_point(upper_mongod, "failCommand", {"times": 2}, writeConcernError=lost, **failing) as point:
        reply = placed.database.command(
            {"createIndexes": placed.name, "indexes": [{"key": {"a": 1}, "name": "a_1"}], "writeConcern": {"w": 1}}
            if command == "createIndexes"
            else {"dropIndexes": placed.name, "index": "a_1"}
        )
        assert point.turn_off() == 2
    assert "writeConcernError" not in reply
    created = {"a_1"} if command == "createIndexes" else set()
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | created


def test_a_write_concern_of_more_than_the_majority(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    before = names(lower_mongod, placed)
    specification = {"key": {"a": 1}, "name": "a_1"}
    create = {"createIndexes": placed.name, "indexes": [specification], "writeConcern": {"w": 9}}
    reply = placed.database.command(create)
    assert reply["writeConcernError"]["code"] == ErrorCode.UnsatisfiableWriteConcern
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"a_1"}


def test_an_index_with_a_long_name(placed: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    name = "n" * 1_000_000
    placed.create_index("a", name=name)
    assert name in names(lower_mongod, placed)
    placed.drop_index(name)
    assert name not in names(lower_mongod, placed) | names(upper_mongod, placed)


def test_a_build_that_is_interrupted_on_one_shard_leaves_the_index_on_none(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    """By ``failCommand``: a mongod 6.0 whose builds are killed may crash."""
    before = names(lower_mongod, placed)
    with fail_point(
        upper_mongod, "failCommand", {"times": 1}, **_failing(placed, "createIndexes", ErrorCode.Interrupted)
    ):
        reply = refused(placed, {"key": {"slow": 1}, "name": "slow_1"})
    assert reply["code"] == ErrorCode.Interrupted
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def test_a_collection_is_dropped_while_an_index_is_being_built(placed: Documents, upper_mongod: Client) -> None:
    """As with a mongos, the router then creates the index on a new collection."""
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _HANG) as point:
        creation = threads.submit(placed.create_index, "slow", name="slow_1")
        point.wait_entered()
        placed.drop()
        assert creation.result() == "slow_1"
    assert set(placed.index_information()) == {"_id_", "slow_1"}
    assert placed.count_documents({}) == 0


def test_an_index_is_undone_though_user_writes_are_blocked_meanwhile(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    before, admin = names(lower_mongod, placed), placed.database.client.admin
    with (
        ThreadPoolExecutor() as threads,
        fail_point(upper_mongod, _NOT_BEGUN) as point,
    ):
        creation = threads.submit(refused, placed, {"key": {"new": 1}, "name": "new"})
        point.wait_entered()
        eventually(lambda: "new" in built(lower_mongod, placed), what="one shard has built the index")
        try:
            admin.command({"setUserWriteBlockMode": 1, "global": True})
            point.turn_off()
            assert creation.result(30)["code"] == ErrorCode.UserWritesBlocked
        finally:
            admin.command({"setUserWriteBlockMode": 1, "global": False})
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def test_what_a_mongod_would_not_store_may_be_in_the_command(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.insert_many({"key": 600, "other": {"$id": 1}} for _ in range(2))
    before = names(lower_mongod, placed)
    comment = {"$id": 1}
    plain = {"key": {"plain": 1}, "name": "plain"}
    placed.database.command({"createIndexes": placed.name, "indexes": [plain], "comment": comment})
    unique = {"key": {"key": 1, "other": 1}, "name": "unique", "unique": True}
    assert refused(placed, unique)["code"] == ErrorCode.DuplicateKey
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before | {"plain"}


def test_an_index_that_one_shard_does_not_drop_at_once_is_dropped_by_all(
    placed: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    placed.create_index("kept")
    before = names(lower_mongod, placed)
    refusing = _failing(placed, "dropIndexes", ErrorCode.UserWritesBlocked)
    with fail_point(upper_mongod, "failCommand", {"times": 1}, **refusing):
        placed.drop_index("kept_1")
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before - {"kept_1"}
    placed.create_index("kept")
    with (
        fail_point(upper_mongod, "failCommand", {"times": 1}, **refusing),
        fail_point(lower_mongod, "failCommand", {"times": 1}, **refusing),
        pytest.raises(OperationFailure) as failure,
    ):
        placed.drop_index("kept_1")
    assert failure.value.code == ErrorCode.UserWritesBlocked
    assert names(lower_mongod, placed) == names(upper_mongod, placed) == before


def _failing(collection: Documents, command: str, code: int) -> Document:
    """The data of a ``failCommand`` on a shard's mongod."""
    data = {"failCommands": [command], "errorCode": code, "failInternalCommands": True}
    return {**data, "namespace": collection.full_name}


def test_a_drop_does_not_join_one_that_is_over(
    placed: Documents, lower_mongod: Client, upper_mongod: Client, cluster: RunningCluster
) -> None:
    placed.create_index("a")
    with (
        cluster.direct("shard0.0.shardd") as daemon,
        ThreadPoolExecutor() as threads,
        fail_point(daemon, "hangInDDLCoordinator", operationType="dropIndexes", at="end") as point,
    ):
        first = threads.submit(placed.drop_index, "a_1")
        point.wait_entered()
        placed.create_index("a")
        second = threads.submit(placed.drop_index, "a_1")
        point.turn_off()
        first.result()
        second.result()
    assert "a_1" not in names(lower_mongod, placed) | names(upper_mongod, placed)
