"""Blocking the writes of users: what is refused, what goes on, and who survives what."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

BYPASS: Final = {"mayBypassWriteBlocking": True}
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


def test_index_builds_of_users_are_aborted(client: Client, database: Database[Document]) -> None:
    database.large.insert_many([{"_id": key, "text": "x" * 200} for key in range(60_000)])
    build = {"createIndexes": "large", "indexes": [{"key": {"text": 1, "_id": 1}, "name": "slow"}]}
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(refusal, database, build)
        eventually(lambda: "slow" in str(list(client.admin.aggregate([{"$currentOp": {"allUsers": True}}]))))
        with writes_blocked(client):
            assert building.result(60) in (ErrorCode.IndexBuildAborted, 0)  # 0: it was faster
            assert refusal(database, build | {"indexes": [{"key": {"text": 1}, "name": "other"}]}) != 0
    names = {each["name"] for each in database.large.list_indexes()}
    assert "other" not in names


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
