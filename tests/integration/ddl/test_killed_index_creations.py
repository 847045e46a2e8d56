"""Creations of indexes that wait: how ``currentOp`` shows them, and ``killOp`` and ``killSessions`` end them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import ExecutionTimeout, OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

_HANG: Final = "hangAfterStartingIndexBuild"
"""A fail point of mongod, at which builds can be interrupted."""


def shown(collection: Documents) -> list[Document]:
    """Return the index creations in progress for a collection, as the router shows them."""
    command = {"currentOp": 1, "desc": "CreateIndexesCoordinator", "ns": collection.full_name}
    found: list[Document] = collection.database.client.admin.command(command)["inprog"]
    return found


def test_creations_with_long_comments_are_shown(cluster: RunningCluster, placed: Documents) -> None:
    """They fit neither into one document nor into the command to the mongod."""

    def create(name: str) -> Document:
        index = {"key": {name: 1}, "name": name}
        command = {"createIndexes": placed.name, "indexes": [index], "comment": name * 15_000_000}
        return placed.database.command(command)

    with cluster.direct("shard0.0.shardd") as daemon, ThreadPoolExecutor() as threads:
        with fail_point(daemon, "hangInDDLCoordinator", operationType="createIndexes", at="begin") as point:
            creations = [threads.submit(create, name) for name in "ab"]
            point.wait_entered(2)
            operations = shown(placed)
        assert [creation.result()["ok"] for creation in creations] == [1, 1]
    assert [list(each["command"]) for each in operations] == [["$truncated"]] * 2


def kill_operation(client: Client, operation: Document, session: ClientSession) -> None:
    assert operation["opid"].startswith("shard0:")
    client.admin.command("killOp", op=operation["opid"])


def kill_session(client: Client, operation: Document, session: ClientSession) -> None:
    assert operation["lsid"]["id"] == session.session_id["id"]
    client.admin.command("killSessions", [session.session_id])


def kill_operation_of_router(client: Client, operation: Document, session: ClientSession) -> None:
    pipeline: list[Document] = [
        {"$currentOp": {"localOps": True}},
        {"$match": {"command.createIndexes": {"$exists": True}}},
    ]
    (own,) = client.admin.aggregate(pipeline)
    client.admin.command("killOp", op=own["opid"])


@pytest.mark.parametrize("kill", [kill_operation, kill_session, kill_operation_of_router])
def test_a_creation_is_killed_while_a_shard_builds(
    placed: Documents,
    lower_mongod: Client,
    upper_mongod: Client,
    kill: Callable[[Client, Document, ClientSession], None],
) -> None:
    client = placed.database.client
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    with client.start_session() as session, ThreadPoolExecutor() as threads, fail_point(upper_mongod, _HANG) as point:
        creation = threads.submit(placed.create_index, "slow", name="slow", session=session)
        point.wait_entered()
        (operation,) = shown(placed)
        kill(client, operation, session)
        error = creation.exception()
    assert isinstance(error, OperationFailure)
    assert error.code == ErrorCode.Interrupted
    eventually(lambda: shown(placed) == [], what="the creation is over")
    for mongod in (lower_mongod, upper_mongod):
        assert "slow" not in mongod[placed.database.name][placed.name].index_information()
    placed.create_index("slow", name="slow")


def create_both(placed: Documents, comment: str, **options: int) -> Document:
    index = {"key": {"both": 1}, "name": "both"}
    command = {"createIndexes": placed.name, "indexes": [index], "comment": comment, **options}
    return placed.database.command(command)


def test_a_creation_is_killed_that_waits_for_another_one(cluster: RunningCluster, placed: Documents) -> None:
    with cluster.direct("shard0.0.shardd") as daemon, ThreadPoolExecutor() as threads:
        with fail_point(daemon, "hangInDDLCoordinator", operationType="createIndexes", at="buildIndexes") as point:
            first = threads.submit(create_both, placed, "first")
            point.wait_entered()
            second = threads.submit(create_both, placed, "second")
            eventually(lambda: len(shown(placed)) == 2, what="the second one waits")
            (waiting,) = (each for each in shown(placed) if "currentPhase" not in each)
            placed.database.client.admin.command("killOp", op=waiting["opid"])
            error = second.exception()
        assert first.result()["ok"] == 1
    assert isinstance(error, OperationFailure)
    assert error.code == ErrorCode.Interrupted
    assert "both" in placed.index_information()


@pytest.mark.parametrize("place", ["buildIndexes", "end"])
def test_a_killed_session_ends_its_own_request_for_a_creation_of_two(
    cluster: RunningCluster, placed: Documents, other_client: Client, place: str
) -> None:
    """Whether it waits for the result of the first one, or for its end, to begin another."""
    other = other_client[placed.database.name][placed.name]
    with cluster.direct("shard0.0.shardd") as daemon, ThreadPoolExecutor() as threads:
        with fail_point(daemon, "hangInDDLCoordinator", operationType="createIndexes", at=place) as point:
            first = threads.submit(placed.create_index, "both", name="both")
            point.wait_entered()
            with other_client.start_session() as session:
                second = threads.submit(other.create_index, "both", name="both", session=session)

                def is_killed() -> bool:
                    placed.database.client.admin.command("killSessions", [session.session_id])
                    return second.done()

                eventually(is_killed, within=20, what="the second request is ended")
                error = second.exception()
            assert not first.done()
        assert first.result() == "both"
    assert isinstance(error, OperationFailure)
    assert error.code == ErrorCode.Interrupted


def test_a_creation_that_took_too_long_does_not_begin_later(placed: Documents, upper_mongod: Client) -> None:
    """It waits for another one, and would begin once that has been killed."""
    placed.insert_many({"key": key} for key in range(0, 1_000, 10))
    with ThreadPoolExecutor() as threads, fail_point(upper_mongod, _HANG) as point:
        first = threads.submit(create_both, placed, "first")
        point.wait_entered()
        with pytest.raises(ExecutionTimeout):
            create_both(placed, "second", maxTimeMS=1000)
        eventually(lambda: len(shown(placed)) == 1, what="the second one is over")
        (operation,) = shown(placed)
        placed.database.client.admin.command("killOp", op=operation["opid"])
        assert isinstance(first.exception(), OperationFailure)
    eventually(lambda: shown(placed) == [], what="nothing is created")
    assert "both" not in placed.index_information()
