"""Retryable writes that were executed on one of two shards when something went wrong: the retry executes the rest.

Retries go through the other router, and chunks may have moved in between.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from shardwright.wire.errors import RETRYABLE_WRITE_ERROR
from tests.fail_points import fail_point
from tests.integration.retryable_writes import (
    COLLECTION,
    RetryingSession,
    deletes_by_id,
    increments,
    increments_by_id,
    inserts,
    modify,
    retrying_session,
    stable,
    upserts,
)
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.local_cluster import Client, RunningCluster

LOST_REPLY = "onPrimaryTransactionalWrite"
"""A fail point of mongod: a retryable write takes effect, and its connection is closed."""

_ROUTER_ATTEMPTS = 3
UNORDERED = {"ordered": False}


@pytest.fixture
def session(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[RetryingSession]:
    """A session on the test's collection: `ranged`, or `placed` if its chunks may move."""
    collection: Documents = request.getfixturevalue("ranged" if "ranged" in request.fixturenames else "placed")
    with retrying_session(cluster, collection.database.name) as session:
        yield session


def move(collection: Documents, key: int, to: str) -> None:
    collection.database.client.admin.command("moveChunk", collection.full_name, find={"key": key}, to=to)


def counters(collection: Documents) -> dict[int, int]:
    """Return the number of increments of each document."""
    return {each["_id"]: each.get("n", 0) for each in collection.find()}


def refused(command: str, code: int, times: int) -> dict[str, Any]:
    """The arguments of mongod's ``failCommand``."""
    return {"mode": {"times": times}, "failCommands": [command], "errorCode": code, "failInternalCommands": True}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_is_split_differently_after_moves(
    session: RetryingSession, placed: Documents, ordered: bool
) -> None:
    """Router 1 knows nothing of the moves, so a shard refuses its versions first."""
    keys = (100, 600, 101, 601)
    assert session.run(inserts(*keys, 50, 550), 1, router=1)["n"] == 6
    command = increments(*keys, ordered=ordered)
    first = session.run(command, 2)
    assert first == {"n": 4, "nModified": 4, "ok": 1.0}
    move(placed, 100, UPPER)
    again = session.run({**command, "updates": [*command["updates"], *increments(50, 550)["updates"]]}, 2, router=1)
    assert again == {"nModified": 6, "n": 6, "retriedStmtIds": [0, 1, 2, 3], "ok": 1.0}
    move(placed, 600, LOWER)
    last = session.run(command, 2)
    assert last == {"nModified": 4, "n": 4, "retriedStmtIds": [0, 1, 2, 3], "ok": 1.0}
    assert counters(placed) == dict.fromkeys((*keys, 50, 550), 1)


@pytest.mark.matrix(share=0.6)
@pytest.mark.parametrize("command", [increments, upserts, increments_by_id], ids=lambda each: each.__name__)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("moved", [None, 100, 600])
def test_a_lost_reply_of_one_shard(
    session: RetryingSession,
    placed: Documents,
    upper_mongod: Client,
    command: Any,  # noqa: ANN401 - a function with any arguments
    ordered: bool,
    moved: int | None,
) -> None:
    """The upper shard's writes take effect, but none of the router's attempts is answered."""
    keys = (100, 600, 101, 601)
    session.run(inserts(*keys), 1)
    write = command(*keys, ordered=ordered)
    with fail_point(upper_mongod, LOST_REPLY, {"times": _ROUTER_ATTEMPTS}, closeConnection=True):
        first = session.run(write, 2)
    assert first["ok"] == 0 or first.get("retriedStmtIds"), first
    if not first["ok"]:
        assert first["errorLabels"] == [RETRYABLE_WRITE_ERROR]
    if moved:
        move(placed, moved, UPPER if moved < SPLIT_AT else LOWER)
    second = session.run(write, 2, router=1)
    assert (second["n"], second["nModified"]) == (4, 4), second
    assert set(second["retriedStmtIds"]) >= {1}
    assert session.run(write, 2) == {**second, "retriedStmtIds": [0, 1, 2, 3]}
    assert counters(placed) == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("moved", [None, 600])
def test_a_lost_reply_of_find_and_modify(
    session: RetryingSession, placed: Documents, upper_mongod: Client, moved: int | None
) -> None:
    session.run(inserts(600), 1)
    write = modify(600, update={"$inc": {"n": 1}}, new=True)
    with fail_point(upper_mongod, LOST_REPLY, {"times": 1}, closeConnection=True):
        first = session.run(write, 2)
    assert first["value"] == {"_id": 600, "key": 600, "n": 1}
    assert first["retriedStmtId"] == 0
    if moved:
        move(placed, moved, LOWER)
    assert session.run(write, 2, router=1) == first


@pytest.mark.parametrize("moved", [None, 100])
def test_a_delete_by_id_is_not_repeated_for_another_document(
    session: RetryingSession, placed: Documents, moved: int | None
) -> None:
    """Deletes by ``_id`` ask all shards."""
    session.run(inserts(100, 600), 1)
    assert session.run(deletes_by_id(100, 600), 2) == {"n": 2, "ok": 1.0}
    session.run(inserts(100, 600), 3)
    session.run(deletes_by_id(100, 600), 4)
    if moved:
        move(placed, moved, UPPER)
    placed.insert_one({"_id": 100, "key": 100})
    again = session.run(deletes_by_id(100, 600), 4, router=1)
    assert again == {"n": 2, "retriedStmtIds": [0, 1], "ok": 1.0}
    assert counters(placed) == {100: 0}


@pytest.mark.parametrize("key", [100, 600])
def test_an_older_number(session: RetryingSession, ranged: Documents, key: int) -> None:
    session.run(inserts(100, 600), 5)
    for command in (inserts(key + 1), inserts(101, 601), increments(key), modify(key, update={"$inc": {"n": 1}})):
        found = session.run(command, 4, router=1)
        assert (found["code"], found["codeName"]) == (225, "TransactionTooOld"), found
        assert "errorLabels" not in found
    assert counters(ranged) == {100: 0, 600: 0}


REMOVE: Document = {"remove": True}
INCREMENT: Document = {"update": {"$inc": {"n": 1}}}


@pytest.mark.parametrize(("first", "second"), [(REMOVE, INCREMENT), (INCREMENT, REMOVE)])
def test_a_retry_in_another_shape(
    session: RetryingSession, ranged: Documents, first: Document, second: Document
) -> None:
    """A mongod refuses an update after a removal; the image of an update also answers a removal."""
    session.compare(inserts(600), 1)
    session.compare(modify(600, **first), 2)
    expected, found = session.on_mongod(modify(600, **second), 2), session.run(modify(600, **second), 2, router=1)
    assert {**found, "errmsg": ""} == {**expected, "errmsg": ""}
    assert found.get("code") == (40606 if first is REMOVE else None)
    assert counters(ranged) == ({} if first is REMOVE else {600: 1})


LABELLED = {11602: True, 91: True, 10107: True, 64: False, 100: False, 112: False}


@pytest.mark.parametrize("code", LABELLED)
@pytest.mark.parametrize("keys", [(600,), (100, 600)], ids=["one shard", "two shards"])
def test_labels_of_errors(
    session: RetryingSession, ranged: Documents, upper_mongod: Client, code: int, keys: tuple[int, ...]
) -> None:
    session.run(inserts(100, 600), 1)
    write = increments(*keys)
    with fail_point(upper_mongod, "failCommand", **refused("update", code, 20)):
        first = session.run(write, 2)
    if LABELLED[code]:
        assert (first["ok"], first["code"], first["errorLabels"]) == (0, code, [RETRYABLE_WRITE_ERROR])
    else:
        assert "errorLabels" not in first
    assert session.run(write, 2, router=1)["n"] == len(keys)
    assert {key: counters(ranged)[key] for key in keys} == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("code", LABELLED)
@pytest.mark.parametrize("command", [increments(600), increments(100, 600), modify(600, update={"$inc": {"n": 1}})])
def test_labels_of_write_concern_errors(
    session: RetryingSession, ranged: Documents, upper_mongod: Client, code: int, command: Document
) -> None:
    session.run(inserts(100, 600), 1)
    concern_error = {"code": code, "codeName": "Some", "errmsg": "not replicated"}
    names = ["update", "findAndModify"]
    with fail_point(upper_mongod, "failCommand", {"times": 20}, failCommands=names, writeConcernError=concern_error):
        first = session.run(command, 2)
    assert first["writeConcernError"]["code"] == code
    assert first.get("errorLabels", []) == ([RETRYABLE_WRITE_ERROR] if LABELLED[code] else [])
    session.run(command, 2, router=1)
    assert counters(ranged)[600] == 1


def test_a_write_without_number_has_no_label(ranged: Documents, session: RetryingSession, upper_mongod: Client) -> None:
    with fail_point(upper_mongod, "failCommand", **refused("insert", 91, 20)):
        found = stable(session.routers[0].command(inserts(600), db=ranged.database.name))
    assert found["ok"] == 0 or found["writeErrors"]
    assert "errorLabels" not in found
    assert ranged.name == COLLECTION
