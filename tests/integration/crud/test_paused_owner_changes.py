"""Retryable writes paused between the refusal by a shard and the transaction that moves the document instead.

In the meantime the history of the old key may move, and the same write may be executed through another router. In any
case the write takes effect once, and every reply equals a lone mongod's.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardwright.shardd.operations.waiting_operations import FOR_COMMITS
from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.crud.test_owner_changes import COMMANDS, LOW
from tests.integration.retryable_writes import RetryingSession, retrying_session
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

PAUSED, OTHER = 0, 1
REFUSED = "hangAfterThrowWouldChangeOwningShardRetryableWrite"
NUMBER = 2


@pytest.fixture
def session(cluster: RunningCluster, placed: Documents) -> Iterator[RetryingSession]:
    """A session on both routers whose collection has a document on the lower shard, in a chunk that may move."""
    placed.database.client.admin.command("split", placed.full_name, middle={"key": 300})
    with retrying_session(cluster, placed.database.name) as session:
        session.compare({"insert": "ranged", "documents": [{"_id": 1, "key": LOW, "n": 1, "a": [1, 2]}]}, 1)
        yield session


def moved_to_upper(session: RetryingSession, placed: Documents, command: Document) -> Document:
    move(session, placed, UPPER)
    return session.on_mongod(command, NUMBER)


def executed_by_another_router(session: RetryingSession, placed: Documents, command: Document) -> Document:
    session.compare(command, NUMBER, router=OTHER)
    return session.on_mongod(command, NUMBER)


def executed_and_moved(session: RetryingSession, placed: Documents, command: Document) -> Document:
    session.compare(command, NUMBER, router=OTHER)
    return moved_to_upper(session, placed, command)


def moved_and_executed(session: RetryingSession, placed: Documents, command: Document) -> Document:
    move(session, placed, UPPER)
    return executed_by_another_router(session, placed, command)


def executed_and_moved_back(session: RetryingSession, placed: Documents, command: Document) -> Document:
    session.compare(command, NUMBER, router=OTHER)
    move(session, placed, UPPER)
    return moved_to_lower(session, placed, command)


def moved_to_lower(session: RetryingSession, placed: Documents, command: Document) -> Document:
    move(session, placed, LOWER)
    return session.on_mongod(command, NUMBER)


def move(session: RetryingSession, placed: Documents, shard: str) -> None:
    """Move the range of the key by which the write is routed; the router with the paused write has not refreshed."""
    moved = session.routers[OTHER].command({"moveChunk": placed.full_name, "find": {"key": LOW}, "to": shard})
    assert moved["ok"], moved


MEANWHILE: dict[str, Callable[[RetryingSession, Documents, Document], Document]] = {
    "moved": moved_to_upper,
    "executed": executed_by_another_router,
    "executed, moved": executed_and_moved,
    "moved, executed": moved_and_executed,
    "executed, moved, moved back": executed_and_moved_back,
}
WRITES = ("upsert", "findAndModify, upsert, new", "operators", "findAndModify")


@pytest.mark.parametrize("name", ["operators", "findAndModify"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_retry_is_answered_once_the_document_is_where_it_belongs(
    cluster: RunningCluster, session: RetryingSession, placed: Documents, name: str, is_moved: bool
) -> None:
    """The range does not move until cross-shard commits whose session history moves with it are over."""
    command, data = COMMANDS[name], {"failCommands": ["commitTransaction"], "failInternalCommands": True}
    with ThreadPoolExecutor(1) as pool, cluster.direct("shard1.0.mongod") as upper:
        slow = {**data, "blockConnection": True, "blockTimeMS": 3000}
        with fail_point(upper, "failCommand", {"times": 1}, **slow) as point:
            reply = pool.submit(session.run, command, NUMBER, router=PAUSED)
            point.wait_entered()
            expected = session.on_mongod(command, NUMBER)
            if is_moved:
                move(session, placed, UPPER)
            session.compare(command, NUMBER, router=OTHER)
            assert list(placed.find()) == session.documents_on_mongod()
        assert reply.result() == expected


@pytest.mark.parametrize("name", ["operators", "findAndModify"])
def test_a_second_attempt_is_answered_once_the_document_is_where_it_belongs(
    cluster: RunningCluster, session: RetryingSession, placed: Documents, client: Client, name: str
) -> None:
    """It finds in its own transaction that another router has executed the write, on one of the shards so far."""
    command, data = COMMANDS[name], {"failCommands": ["commitTransaction"], "failInternalCommands": True}
    with ThreadPoolExecutor(2) as pool, cluster.direct("shard1.0.mongod") as upper:
        slow = {**data, "blockConnection": True, "blockTimeMS": 3000}
        with fail_point(client, REFUSED) as paused, fail_point(upper, "failCommand", {"times": 1}, **slow) as point:
            second = pool.submit(session.run, command, NUMBER, router=PAUSED)
            paused.wait_entered()
            first = pool.submit(session.run, command, NUMBER, router=OTHER)
            point.wait_entered()
            paused.turn_off()
            expected = session.on_mongod(command, NUMBER)
            assert second.result() == session.on_mongod(command, NUMBER)
            assert list(placed.find()) == session.documents_on_mongod()
        assert first.result() == expected


def test_a_retry_that_waits_for_a_commit_does_not_outlast_the_primary(
    cluster: RunningCluster, session: RetryingSession, placed: Documents, other_client: Client
) -> None:
    command, number = COMMANDS["operators"], NUMBER
    with ThreadPoolExecutor() as pool, cluster.direct("shard1.0.mongod") as upper:
        slow = {"failCommands": ["commitTransaction"], "failInternalCommands": True, "blockConnection": True}
        with fail_point(upper, "failCommand", {"times": 1}, **slow, blockTimeMS=6000) as point:
            reply = pool.submit(session.run, command, number, router=PAUSED)
            point.wait_entered()
            expected = session.on_mongod(command, number)
            retry = pool.submit(session.run, command, number, router=OTHER)
            waiting = {"command.update": placed.name, "secs_running": {"$gte": 1}}
            find: list[Document] = [{"$currentOp": {"localOps": True}}, {"$match": waiting}]
            eventually(lambda: list(other_client.admin.aggregate(find)), within=20, what="the retry waits")
            with cluster.direct("shard0.0.mongod") as lower:
                lower.admin.command("replSetStepDown", 1, force=True)
            again = session.on_mongod(command, number)
            assert retry.result() == again
        assert reply.result() in (expected, again)
    assert list(placed.find()) == session.documents_on_mongod()


def test_a_retry_that_waits_for_a_commit_is_killed(
    cluster: RunningCluster, session: RetryingSession, placed: Documents
) -> None:
    command = COMMANDS["operators"]
    find: list[Document] = [{"$currentOp": {}}, {"$match": {"command.update": placed.name, "msg": FOR_COMMITS}}]
    with (
        ThreadPoolExecutor() as pool,
        cluster.direct("shard1.0.mongod") as upper,
        cluster.direct("shard0.0.shardd") as coordinator,
    ):
        slow = {"failCommands": ["commitTransaction"], "failInternalCommands": True, "blockConnection": True}
        with fail_point(upper, "failCommand", {"times": 1}, **slow, blockTimeMS=6000) as point:
            reply = pool.submit(session.run, command, NUMBER, router=PAUSED)
            point.wait_entered()
            retry = pool.submit(session.run, command, NUMBER, router=OTHER)
            [shown] = eventually(lambda: list(coordinator.admin.aggregate(find)), within=20, what="the retry waits")
            coordinator.admin.command("killOp", op=shown["opid"])
            assert retry.result()["code"] == ErrorCode.Interrupted
            assert not reply.done()
        assert reply.result() == session.on_mongod(command, NUMBER)
    session.compare(command, NUMBER, router=OTHER)
    assert list(placed.find()) == session.documents_on_mongod()


@pytest.mark.matrix(share=0.6)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_the_write_takes_effect_once(
    session: RetryingSession, placed: Documents, client: Client, meanwhile: str, name: str
) -> None:
    command = COMMANDS[name]
    with ThreadPoolExecutor(1) as pool:
        with fail_point(client, REFUSED) as point:
            reply = pool.submit(session.run, command, NUMBER, router=PAUSED)
            point.wait_entered()
            expected = MEANWHILE[meanwhile](session, placed, command)
        assert reply.result() == expected
    for router, shard in ((PAUSED, LOWER), (OTHER, UPPER)):
        session.compare(command, NUMBER, router=router)
        move(session, placed, shard)
    session.compare(command, NUMBER, router=PAUSED)
    assert list(placed.find().sort("_id")) == session.documents_on_mongod()
