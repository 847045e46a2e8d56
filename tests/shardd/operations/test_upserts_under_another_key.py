"""Retryable upserts of documents with another shard key than their query, which the same shard owns."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from shardwright.wire.transport.client import Connection, handshake_document
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.session_history.history_writes import Session, reply_to
from tests.transports import new_transport

ROUTED_BY, OWN = 100, 200
SUPPLIED: dict[str, Any] = {"$setOnInsert": {"a": OWN, "n": 1}}
ATTEMPTS = 4


def write(sharded: ShardedNamespace, command: dict[str, Any]) -> dict[str, Any]:
    """The reply of the shard to a command, sent on a connection of its own."""
    address = sharded.cluster.shards["sh0"].members[0].address
    versioned = {**command, "shardVersion": sharded.version()}

    async def main() -> dict[str, Any]:
        with trio.fail_after(120):
            connection = await Connection.open(new_transport(), address, handshake=handshake_document("tests"))
            try:
                return await reply_to(connection, sharded.db, versioned)
            finally:
                connection.close()

    return trio.run(main)


def update(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    return {"update": "c", "updates": [{"q": {"a": ROUTED_BY}, "u": SUPPLIED, "upsert": True}], **fields}


def find_and_modify(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"findAndModify": "c", "query": {"a": ROUTED_BY}, "update": SUPPLIED, "upsert": True, **fields}


WITH_ID: dict[str, Any] = {"_id": 1, "a": ROUTED_BY}
REPLACEMENT = {"a": OWN, "n": 1}
COMMANDS = {
    "update": update(),
    "update with _id": update(updates=[{"q": WITH_ID, "u": REPLACEMENT, "upsert": True}]),
    "findAndModify": find_and_modify(new=True),
    "findAndModify with _id": find_and_modify(query=WITH_ID, update=REPLACEMENT),
    "with a statement id": find_and_modify(stmtId=3),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_executed_once_however_often_it_is_sent_at_the_same_time(ranged: ShardedNamespace, name: str) -> None:
    command = Session().write(1, COMMANDS[name])
    with ThreadPoolExecutor(ATTEMPTS) as pool:
        replies = list(pool.map(lambda _: write(ranged, command), range(ATTEMPTS)))
    retried = {"retriedStmtIds", "retriedStmtId"}
    assert len([reply for reply in replies if retried.isdisjoint(reply)]) == 1, replies
    answers = [{field: value for field, value in reply.items() if field not in retried} for reply in replies]
    assert answers == [answers[0]] * ATTEMPTS
    assert [(document["a"], document["n"]) for document in ranged.documents()] == [(OWN, 1)]


def test_the_other_statements_of_its_batch(ranged: ShardedNamespace) -> None:
    session, statement = Session(), update()["updates"][0]
    command = session.write(1, {"update": "c", "updates": [statement, {"q": {"a": OWN}, "u": {"$inc": {"n": 5}}}]})
    first = write(ranged, command)
    assert (first["n"], first["nModified"], first["upserted"][0]["index"]) == (2, 1, 0)
    assert write(ranged, command) == {**first, "retriedStmtIds": [0, 1]}
    assert [document["n"] for document in ranged.documents()] == [6]


def test_its_write_concern_is_that_of_the_commit(ranged: ShardedNamespace) -> None:
    command = Session().write(1, update(writeConcern={"w": 5, "wtimeout": 1}))
    first = write(ranged, command)
    assert (first["ok"], first["n"], first["writeConcernError"]["code"]) == (1.0, 1, 100)
    assert write(ranged, {**command, "writeConcern": {"w": 1}})["retriedStmtIds"] == [0]


def test_its_failure(ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 300})
    command = Session().write(1, update(updates=[{"q": {"a": ROUTED_BY, "_id": 1}, "u": SUPPLIED, "upsert": True}]))
    (error,) = write(ranged, command)["writeErrors"]
    assert (error["code"], error["keyValue"]) == (11000, {"_id": 1})
    ranged.versioned({"delete": "c", "deletes": [{"q": {"a": 300}, "limit": 1}]})
    assert write(ranged, command)["upserted"] == [{"index": 0, "_id": 1}]
