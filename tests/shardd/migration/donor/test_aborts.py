"""Migrations that end before they commit, and commits whose replies are lost."""

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.server_parameters import server_parameter
from tests.shardd.migration.donor.moving import LOW, TOP, Move, changes, daemon, migrations_left, stopped_move
from tests.shardd.mini_cluster import MAJORITY, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


@pytest.fixture
def filled(ranged: ShardedNamespace) -> ShardedNamespace:
    """The collection with 100 documents in the range to move."""
    ranged.insert(*({"_id": n, "a": n} for n in range(10, 110)))
    return ranged


def assert_nothing_moved(mini: MiniCluster, sharded: ShardedNamespace) -> None:
    """The donor has the range, accepts writes, and has forgotten the migration; the next one succeeds."""
    assert sharded.chunks()[-1]["shard"] == "sh0"
    sharded.insert({"_id": 1000, "a": 1000})
    assert len(sharded.documents()) == 101
    assert migrations_left(mini) == []
    assert changes(sharded, "moveChunk.error")
    assert changes(sharded, "moveChunk.from")[-1]["note"] == "aborted"
    Move(sharded, LOW, TOP, "sh1").wait()
    assert len(sharded.documents("sh1")) == 101


def test_the_recipient_fails_to_catch_up_finally(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with fail_point(daemon(mini), "failMigrationCommit"), pytest.raises(OperationFailure) as failure:
        Move(filled, LOW, TOP, "sh1").wait()
    assert failure.value.code == ErrorCode.InternalError
    assert_nothing_moved(mini, filled)


def test_the_commit_is_refused(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with fail_point(daemon(mini), "migrationCommitVersionError"), pytest.raises(OperationFailure) as failure:
        Move(filled, LOW, TOP, "sh1").wait()
    assert failure.value.code == ErrorCode.StaleEpoch
    assert_nothing_moved(mini, filled)


def test_the_reply_to_the_commit_is_lost(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with fail_point(daemon(mini), "migrationCommitNetworkError"):
        Move(filled, LOW, TOP, "sh1").wait()
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert migrations_left(mini) == []
    assert len(filled.documents("sh1")) == 100
    assert filled.documents("sh0") == []


@pytest.mark.parametrize(
    ("shard", "place", "shown_as", "code"),
    [
        ("sh0", "moveChunkHangAtStep4", "MoveChunk", ErrorCode.Interrupted),
        ("sh1", "migrateThreadHangAtStep4", "migrateThread", ErrorCode.OperationFailed),
    ],
    ids=["donor", "recipient"],
)
def test_the_migration_is_killed(
    mini: MiniCluster, filled: ShardedNamespace, shard: str, place: str, shown_as: str, code: int
) -> None:
    admin = daemon(mini, shard).admin
    with stopped_move(filled, place, shard=shard) as move:
        [shown] = admin.command("currentOp", desc=shown_as)["inprog"]
        admin.command("killOp", op=shown["opid"])
        with pytest.raises(OperationFailure) as failure:
            move.wait()
    assert failure.value.code == code
    assert_nothing_moved(mini, filled)


def test_the_clone_takes_too_long(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with (
        server_parameter(daemon(mini), "migrationCatchUpTimeoutSecs", 0.5),
        fail_point(daemon(mini, "sh1"), "migrateThreadHangAtStep3"),
        pytest.raises(OperationFailure) as failure,
    ):
        Move(filled, LOW, TOP, "sh1").wait()
    assert failure.value.code == ErrorCode.ExceededTimeLimit
    assert_nothing_moved(mini, filled)


def test_migrations_are_forbidden_meanwhile(mini: MiniCluster, filled: ShardedNamespace) -> None:
    allow = {"_configsvrSetAllowMigrations": filled.namespace, "writeConcern": MAJORITY}
    with mini.config_client() as config, stopped_move(filled, "moveChunkHangAtStep3") as move:
        config.admin.command({**allow, "allowMigrations": False})
        # When that returns, the shards have refreshed and the migration has ended.
        assert migrations_left(mini) == []
        with pytest.raises(OperationFailure) as failure:
            move.wait()
        assert failure.value.code == ErrorCode.ConflictingOperationInProgress
        config.admin.command({**allow, "allowMigrations": True})
    assert_nothing_moved(mini, filled)


def test_the_recipient_has_documents_in_the_range(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with mini.shards["sh1"].members[0].mongod_client() as mongod:
        mongod[filled.db][filled.collection].insert_one({"_id": 50, "a": 50, "is_stranger": True})
        with pytest.raises(OperationFailure) as failure:
            Move(filled, LOW, TOP, "sh1").wait()
        assert failure.value.code == ErrorCode.OperationFailed
        assert "Data transfer error: " in failure.value.details["errmsg"]  # type: ignore[index]
        mongod[filled.db][filled.collection].delete_one({"_id": 50})
    assert_nothing_moved(mini, filled)


def test_dropping_a_collection_aborts_its_migration(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with stopped_move(filled, "moveChunkHangAtStep3") as move:
        drop = {"_shardsvrDropCollection": filled.collection, "databaseVersion": filled.database_version}
        assert filled.run(drop)["ok"] == 1.0
        with pytest.raises(OperationFailure):
            move.wait()
    assert migrations_left(mini) == []
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            assert client[filled.db].list_collection_names() == []
