"""Killed sessions and cursors whose operations wait in a shard daemon for a critical section, unknown to any mongod."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

KINDS: Final[dict[str, Document]] = {
    "plain": {},
    "retryable": {"txnNumber": Int64(1)},
    "of a transaction": {"txnNumber": Int64(1), "autocommit": False, "startTransaction": True},
}

SHOWN: Final[list[Document]] = [{"$currentOp": {}}, {"$match": {"waitingForLock": True, "command.insert": "ranged"}}]


@pytest.mark.parametrize("killer", ["router.0", "router.1"])
@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_a_killed_write_does_not_wait_for_a_move(
    cluster: RunningCluster, placed: Documents, fields: dict[str, Any], killer: str
) -> None:
    """It fails at once, and writes nothing later; nor is its transaction committed."""
    client, lsid = placed.database.client, {"id": Binary.from_uuid(uuid4())}
    command = {"insert": placed.name, "documents": [{"_id": "killed", "key": SPLIT_AT + 1}], "lsid": lsid, **fields}
    with cluster.direct(f"{UPPER}.0.shardd") as donor, ThreadPoolExecutor() as pool:
        with fail_point(donor, "hangAfterBlockingWrites") as point:
            moving = pool.submit(client.admin.command, "moveChunk", placed.full_name, find={"key": SPLIT_AT}, to=LOWER)
            point.wait_entered()
            with raw_client(cluster.address("router.0")) as raw:
                writing = pool.submit(raw.command, command, db=placed.database.name)
                with cluster.direct(killer) as other:

                    def is_killed() -> bool:
                        other.admin.command("killSessions", [lsid])
                        return writing.done()

                    eventually(is_killed, within=20, what="it is killed")
                reply = writing.result()
                if "autocommit" in fields:
                    assert not raw.command({"commitTransaction": 1, "lsid": lsid, **fields})["ok"]
        moving.result()
    assert (reply["ok"], reply["code"]) == (0, ErrorCode.Interrupted)
    assert placed.count_documents({}) == 0


@pytest.mark.parametrize("shown", [{"localOps": True}, {}], ids=["by the router", "by the shard"])
def test_an_operation_is_killed_while_it_waits(cluster: RunningCluster, placed: Documents, shown: Document) -> None:
    """It fails at once, and writes nothing later, although the shard keeps the range."""
    client, lsid = placed.database.client, {"id": Binary.from_uuid(uuid4())}
    command = {"insert": placed.name, "documents": [{"_id": "killed", "key": SPLIT_AT + 1}], "lsid": lsid}
    find: list[Document] = [{"$currentOp": shown}, {"$match": {"command.insert": placed.name}}]
    with (
        cluster.direct(f"{UPPER}.0.shardd") as donor,
        ThreadPoolExecutor() as pool,
        raw_client(cluster.address("router.0")) as raw,
        fail_point(donor, "failMigrationCommit"),
    ):
        with fail_point(donor, "hangAfterBlockingWrites") as point:
            moving = pool.submit(client.admin.command, "moveChunk", placed.full_name, find={"key": SPLIT_AT}, to=LOWER)
            point.wait_entered()
            writing = pool.submit(raw.command, command, db=placed.database.name)
            eventually(lambda: list(donor.admin.aggregate(SHOWN)), within=20, what="the shard shows it")
            with cluster.direct("router.0") as router:
                (operation,) = router.admin.aggregate(find)
                router.admin.command("killOp", op=operation["opid"])
            reply = writing.result()
        with pytest.raises(OperationFailure):
            moving.result()
    assert (reply["ok"], reply["code"]) == (0, ErrorCode.Interrupted)
    assert placed.count_documents({}) == 0


def test_a_drop_does_not_wait_for_a_batch_of_a_killed_cursor(
    cluster: RunningCluster, database: Database[Document], lower_mongod: Client
) -> None:
    """The batch waits for the drop of a collection that its cursor joins. Only mongod knows that the cursor is gone."""
    for name in ("source", "target"):
        database[name].insert_many([{"_id": n} for n in range(5)])
    join = {"$lookup": {"from": "target", "localField": "_id", "foreignField": "_id", "as": "x"}}
    local = lower_mongod[database.name]
    with (
        lower_mongod.start_session() as session,
        ThreadPoolExecutor() as pool,
        raw_client(cluster.address("router.0")) as raw,
        cluster.direct(f"{LOWER}.0.shardd") as shard,
    ):
        opening = {"aggregate": "source", "pipeline": [join], "cursor": {"batchSize": 1}}
        cursor = raw.command(opening, db=database.name)["cursor"]
        idle: list[Document] = [{"$currentOp": {"idleCursors": True}}, {"$match": {"ns": f"{database.name}.source"}}]
        (shown,) = lower_mongod.admin.aggregate(idle)
        local.command("killCursors", "source", cursors=[shown["cursor"]["cursorId"]])
        with session.start_transaction():
            local.target.insert_one({"_id": "held"}, session=session)
            dropping = pool.submit(database.drop_collection, "target")
            drops: list[Document] = [{"$currentOp": {}}, {"$match": {"command.drop": "target"}}]
            eventually(lambda: list(lower_mongod.admin.aggregate(drops)), within=20, what="mongod waits with the drop")
            more = {"getMore": cursor["id"], "collection": "source"}
            reading = pool.submit(raw.command, more, db=database.name)
            waiting = {"waitingForLock": True, "command.collection": "source", "ns": f"{database.name}.source"}
            shows: list[Document] = [{"$currentOp": {}}, {"$match": waiting}]
            eventually(lambda: list(shard.admin.aggregate(shows)), within=20, what="the shard shows the batch")
            session.abort_transaction()
        dropping.result(timeout=20)
        assert reading.result(timeout=20)["code"] == ErrorCode.CursorNotFound


BY_ID: Final[dict[str, Document]] = {
    "update": {"updates": [{"q": {"_id": "held"}, "u": {"$set": {"changed": True}}}]},
    "delete": {"deletes": [{"q": {"_id": "held"}, "limit": 1}]},
}


@contextmanager
def write_by_id(
    cluster: RunningCluster, placed: Documents, kind: str, lsid: Document
) -> Iterator[tuple[MongoClient[Document], Future[Document]]]:
    """A write of a document that a transaction holds; yields a client of the mongod where it waits, and its reply."""
    placed.insert_one({"_id": "held", "key": SPLIT_AT + 1})
    command = {kind: placed.name, **BY_ID[kind], "lsid": lsid}
    with (
        placed.database.client.start_session() as session,
        session.start_transaction(),
        ThreadPoolExecutor() as pool,
        raw_client(cluster.address("router.0")) as raw,
        cluster.direct(f"{UPPER}.0.mongod") as mongod,
    ):
        placed.update_one({"_id": "held", "key": SPLIT_AT + 1}, {"$set": {"by": "transaction"}}, session=session)
        writing = pool.submit(raw.command, command, db=placed.database.name)
        waiting: list[Document] = [{"$currentOp": {}}, {"$match": {"op": kind.replace("delete", "remove")}}]
        try:
            eventually(lambda: list(mongod.admin.aggregate(waiting)), within=20, what="the mongod executes it")
            yield mongod, writing
        finally:
            session.abort_transaction()


@pytest.mark.parametrize("killer", ["router.0", "router.1"])
@pytest.mark.parametrize("command", ["killSessions", "killAllSessionsByPattern"])
@pytest.mark.parametrize("kind", BY_ID)
def test_a_killed_session_ends_a_write_by_id_alone(
    cluster: RunningCluster, placed: Documents, kind: str, command: str, killer: str
) -> None:
    """The router has sent it in a session of its own, which no client can name; any router may be asked."""
    lsid = {"id": Binary.from_uuid(uuid4())}
    with write_by_id(cluster, placed, kind, lsid) as (_, writing), cluster.direct(killer) as router:

        def waiting() -> list[Document]:
            of_session = {"$match": {"lsid.id": lsid["id"], "type": "op"}}
            shown = list(router.admin.aggregate([{"$currentOp": {}}, of_session]))
            return shown if {each["shard"] for each in shown} == {UPPER} else []

        shown = eventually(waiting, within=20, what="only the shard that has the document is still at work")
        named = [{"lsid": shown[0]["lsid"]}] if command == "killAllSessionsByPattern" else [lsid]
        router.admin.command(command, named)
        reply = writing.result(timeout=20)
    assert [error["code"] for error in reply["writeErrors"]] == [ErrorCode.Interrupted]
    assert reply["n"] == 0
    assert placed.count_documents({"_id": "held", "changed": None}) == 1


def test_another_session_does_not_end_a_write_by_id_alone(cluster: RunningCluster, placed: Documents) -> None:
    lsid, other = ({"id": Binary.from_uuid(uuid4())} for _ in range(2))
    with write_by_id(cluster, placed, "update", lsid) as (_, writing), cluster.direct("router.0") as router:
        router.admin.command("killSessions", [other])
        assert not writing.done()
        (operation,) = router.admin.aggregate([{"$currentOp": {"localOps": True}}, {"$match": {"op": "update"}}])
        router.admin.command("killOp", op=operation["opid"])
        reply = writing.result(timeout=20)
    assert (reply["ok"], reply["code"]) == (0, ErrorCode.Interrupted)
