"""Blocking the writes of users: refused and continuing operations, and faults during the change."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

BYPASS: Final = {"mayBypassWriteBlocking": True}
WAIT_SECONDS_MAX: Final = 60.0
BLOCKED: Final = {"_id": "", "blockNewUserShardedDDL": True, "blockUserWrites": True}


def set_mode(client: Client, *, block: bool) -> None:
    client.admin.command({"setUserWriteBlockMode": 1, "global": block})


@contextmanager
def writes_blocked(client: Client) -> Iterator[None]:
    set_mode(client, block=True)
    try:
        yield
    finally:
        set_mode(client, block=False)


def refusal(database: Database[Document], command: Document) -> int:
    """The code with which a command, or the only statement in it, is refused; 0 if it is not."""
    try:
        reply = database.command(command)
    except OperationFailure as failure:
        return failure.code or -1
    return int(reply["writeErrors"][0]["code"]) if "writeErrors" in reply else 0


def documents(cluster: RunningCluster, names: tuple[str, ...]) -> list[list[Document]]:
    found = []
    for name in names:
        with cluster.direct(name) as direct:
            found.append(list(direct.config.user_writes_critical_sections.find()))
    return found


EVERYWHERE: Final = ("config.0.configd", f"{LOWER}.0.shardd", f"{UPPER}.0.shardd")


def test_writes_and_ddl_of_users_are_refused(
    cluster: RunningCluster, client: Client, database: Database[Document], placed: Documents
) -> None:
    placed.insert_many([{"_id": key, "key": key} for key in range(495, 505)])
    database.plain.insert_one({"_id": 0, "key": 1})
    name, index = placed.name, {"key": {"a": 1}, "name": "a_1"}
    commands: list[Document] = [
        {"insert": name, "documents": [{"key": 7}]},
        {"insert": "plain", "documents": [{}]},
        {"insert": "new", "documents": [{}]},
        {"update": name, "updates": [{"q": {"key": 499}, "u": {"$set": {"a": 1}}}]},
        {"update": name, "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]},
        {"delete": name, "deletes": [{"q": {"key": 499}, "limit": 1}]},
        {"findAndModify": name, "query": {"key": 499}, "update": {"$set": {"a": 2}}},
        {"createIndexes": name, "indexes": [index]},
        {"create": "other"},
        {"drop": name},
        {"drop": "plain"},
        {"collMod": name, "validator": {}},
        {"dropDatabase": 1},
        {"aggregate": name, "pipeline": [{"$out": "copied"}], "cursor": {}},
        {"aggregate": "plain", "pipeline": [{"$merge": {"into": name}}], "cursor": {}},
    ]
    on_admin: list[Document] = [
        {"renameCollection": placed.full_name, "to": f"{database.name}.elsewhere"},
        {"shardCollection": f"{database.name}.another", "key": {"_id": 1}},
        {"refineCollectionShardKey": placed.full_name, "key": {"key": 1, "a": 1}},
        {"reshardCollection": placed.full_name, "key": {"a": 1}},
    ]
    with writes_blocked(client):
        assert documents(cluster, EVERYWHERE) == [[BLOCKED]] * 3
        for command in commands:
            assert refusal(database, command) == ErrorCode.UserWritesBlocked, command
        for command in on_admin:
            assert refusal(client.admin, command) == ErrorCode.UserWritesBlocked, command
        assert refusal(database, {"delete": name, "deletes": [{"q": {"key": 99}, "limit": 1}]}) == 0
        assert refusal(database, {"dropIndexes": name, "index": "*"}) == 0
        assert refusal(client.admin, {"enableSharding": f"{database.name}_2"}) == 0
        set_mode(client, block=True)  # again
        assert placed.count_documents({}) == 10
        for command in (commands[0], commands[3], commands[7], commands[11], {"drop": "plain"}):
            assert refusal(database, {**command, **BYPASS}) == 0, command
        assert refusal(client.admin, {**on_admin[1], **BYPASS}) == 0
    assert documents(cluster, EVERYWHERE) == [[]] * 3
    client.drop_database(f"{database.name}_2")
    placed.insert_one({"key": 8})


def test_chunks_and_databases_move_meanwhile(client: Client, database: Database[Document], placed: Documents) -> None:
    placed.insert_many([{"_id": key, "key": key} for key in range(495, 505)])
    database.plain.insert_many([{"_id": key} for key in range(5)])
    with writes_blocked(client):
        client.admin.command("moveRange", placed.full_name, min={"key": SPLIT_AT}, toShard=LOWER)
        client.admin.command("moveRange", placed.full_name, min={"key": SPLIT_AT}, toShard=UPPER)
        client.admin.command("movePrimary", database.name, to=UPPER)
        assert sorted(each["_id"] for each in placed.find()) == list(range(495, 505))
        assert database.plain.count_documents({}) == 5
        with pytest.raises(OperationFailure):
            database.plain.insert_one({"_id": 5})


@pytest.mark.parametrize("is_sharded", [True, False], ids=["sharded", "unsharded"])
def test_index_builds_of_users_are_aborted(
    cluster: RunningCluster,
    client: Client,
    database: Database[Document],
    placed: Documents,
    is_sharded: bool,
) -> None:
    collection = placed if is_sharded else database.plain
    collection.insert_many([{"key": key, "text": "x"} for key in (1, 999)])
    build = {"createIndexes": collection.name, "indexes": [{"key": {"text": 1}, "name": "slow"}]}
    owners = (LOWER, UPPER) if is_sharded else (LOWER,)
    with ExitStack() as stack:
        mongods = [stack.enter_context(cluster.direct(f"{shard}.0.mongod")) for shard in owners]
        points = [stack.enter_context(fail_point(mongod, "hangAfterInitializingIndexBuild")) for mongod in mongods]
        building = stack.enter_context(ThreadPoolExecutor(1)).submit(refusal, database, build)
        for point in points:
            point.wait_entered()
        with writes_blocked(client):
            assert building.result(60) == ErrorCode.IndexBuildAborted
            other = {"createIndexes": collection.name, "indexes": [{"key": {"a": 1}, "name": "other"}]}
            assert refusal(database, other) == ErrorCode.UserWritesBlocked
        for mongod in mongods:
            names = {each["name"] for each in mongod[database.name][collection.name].list_indexes()}
            assert not names & {"slow", "other"}


def test_the_coordinator_survives_a_crash(
    cluster: RunningCluster, client: Client, other_client: Client, database: Database[Document]
) -> None:
    cluster.kill(f"{UPPER}.0.shardd", "STOP")
    try:
        with ThreadPoolExecutor(2) as pool:
            blocking = pool.submit(set_mode, client, block=True)
            with cluster.direct("config.0.configd") as config:
                coordinators = config.config.sharding_configsvr_coordinators
                eventually(lambda: coordinators.count_documents({"phase": "prepare", "block": True}) == 1)
            joining = pool.submit(set_mode, other_client, block=True)
            with pytest.raises(OperationFailure) as conflict:
                set_mode(other_client, block=False)
            assert conflict.value.code == ErrorCode.ConflictingOperationInProgress
            cluster.kill("config.0.configd")
            cluster.restart("config.0.configd")
            cluster.kill(f"{UPPER}.0.shardd", "CONT")
            for each in (blocking, joining):
                each.result(60)
        assert documents(cluster, EVERYWHERE) == [[BLOCKED]] * 3
        for name in (f"{LOWER}.0.shardd", f"{LOWER}.0.mongod"):
            cluster.kill(name)
            cluster.restart(name)
        eventually(lambda: refusal(database, {"drop": "nothing"}) == ErrorCode.UserWritesBlocked)
        assert refusal(database, {"insert": "plain", "documents": [{}]}) == ErrorCode.UserWritesBlocked
    finally:
        cluster.kill(f"{UPPER}.0.shardd", "CONT")
        set_mode(client, block=False)
    with cluster.direct("config.0.configd") as config:
        assert config.config.sharding_configsvr_coordinators.count_documents({}) == 0
    database.plain.insert_one({})


def test_a_commit_of_two_shards_that_is_under_way_is_not_blocked(
    cluster: RunningCluster, client: Client, placed: Documents
) -> None:
    """mongod blocks writes under its global lock, which a prepared transaction holds until its decision is written."""
    with ExitStack() as stack:
        coordinator = stack.enter_context(cluster.direct(f"{LOWER}.0.shardd"))
        executor = stack.enter_context(ThreadPoolExecutor(2))
        session = stack.enter_context(client.start_session())
        stack.callback(set_mode, client, block=False)
        session.start_transaction()
        placed.insert_many([{"_id": key, "key": key} for key in (SPLIT_AT - 1, SPLIT_AT)], session=session)
        with fail_point(coordinator, "hangBeforeWritingDecision") as point:
            commit = executor.submit(session.commit_transaction)
            point.wait_entered()
            blocking = executor.submit(set_mode, client, block=True)
            eventually(
                lambda: documents(cluster, (f"{LOWER}.0.shardd",))[0], what="the shard has begun to block writes"
            )
        commit.result(WAIT_SECONDS_MAX)
        blocking.result(WAIT_SECONDS_MAX)
        assert documents(cluster, (f"{LOWER}.0.shardd",)) == [[BLOCKED]]
    assert placed.count_documents({}) == 2
