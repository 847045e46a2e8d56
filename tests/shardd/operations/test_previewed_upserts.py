"""Upserts whose document has to be known before it is inserted: executed once each, and answered as mongod does."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tests.shardd.router_stand_in import ShardedNamespace, transaction_numbers

WRITERS = 4
ROUNDS = 15


def counted(key: int) -> dict[str, Any]:
    """An upsert that counts in ``n``, by a pipeline that does not reveal the document's shard key."""
    sums = {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}
    return {
        "q": {"_id": key, "a": key},
        "u": [{"$replaceWith": {"$mergeObjects": ["$$ROOT", sums]}}],
        "upsert": True,
    }


def update(*updates: dict[str, Any], **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    return {"update": "c", "updates": list(updates), **fields}


def find_and_modify(key: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    statement = counted(key)
    return {"findAndModify": "c", "query": statement["q"], "update": statement["u"], "upsert": True, **fields}


def together(work: Any) -> list[Any]:  # noqa: ANN401 - a function of any result
    """The results of ``work`` for several writers that begin at the same moment."""
    barrier = Barrier(WRITERS)

    def begin(_: int) -> Any:  # noqa: ANN401 - likewise
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(begin, range(WRITERS)))


def test_one_of_several_concurrent_upserts_inserts_and_the_others_update(ranged: ShardedNamespace) -> None:
    version = ranged.version()
    for key in range(100, 100 + ROUNDS):
        replies = together(lambda key=key: ranged.versioned(update(counted(key)), version=version))
        assert [reply["n"] for reply in replies] == [1] * WRITERS, replies
        assert sum("upserted" in reply for reply in replies) == 1
        assert sum(reply["nModified"] for reply in replies) == WRITERS - 1
    assert {document["n"] for document in ranged.documents()} == {WRITERS}


def test_the_same_for_find_and_modify(ranged: ShardedNamespace) -> None:
    version = ranged.version()
    for key in range(100, 100 + ROUNDS):
        replies = together(lambda key=key: ranged.versioned(find_and_modify(key, new=True), version=version))
        assert sorted(reply["value"]["n"] for reply in replies) == [1, 2, 3, 4], replies
        assert sum("upserted" in reply["lastErrorObject"] for reply in replies) == 1


def test_many_writers_of_one_document_lose_nothing(ranged: ShardedNamespace) -> None:
    version = ranged.version()

    def count_on() -> int:
        return sum(ranged.versioned(update(counted(100)), version=version)["n"] for _ in range(25))

    assert together(count_on) == [25] * WRITERS
    assert ranged.documents()[0]["n"] == 25 * WRITERS


def test_the_replies_are_those_of_a_mongod(ranged: ShardedNamespace) -> None:
    inserted = {"n": 1, "upserted": [{"index": 0, "_id": 100}], "nModified": 0, "ok": 1.0}
    assert ranged.versioned(update(counted(100))) == inserted
    assert ranged.versioned(update(counted(100))) == {"n": 1, "nModified": 1, "ok": 1.0}
    assert ranged.versioned(find_and_modify(101)) == {
        "lastErrorObject": {"n": 1, "updatedExisting": False, "upserted": 101},
        "value": None,
        "ok": 1.0,
    }
    assert ranged.versioned(find_and_modify(101, new=True, fields={"n": 1})) == {
        "lastErrorObject": {"n": 1, "updatedExisting": True},
        "value": {"_id": 101, "n": 2},
        "ok": 1.0,
    }


def test_the_inserted_document_is_the_result_of_the_pipeline(ranged: ShardedNamespace) -> None:
    made = {"_id": 100, "a": 100, "$price": 1, "b.c": 2}
    fields = {"$setField": {"field": {"$literal": "$price"}, "input": "$$ROOT", "value": 1}}
    dotted = {"$setField": {"field": "b.c", "input": "$$ROOT", "value": 2}}
    ranged.versioned(update({**counted(100), "u": [{"$replaceWith": fields}, {"$replaceWith": dotted}]}))
    assert ranged.documents() == [made]


def test_a_supplied_document_is_inserted_in_place_of_the_pipelines_result(ranged: ShardedNamespace) -> None:
    supplied = {"upsertSupplied": True, "c": {"new": {"_id": 100, "a": 100, "supplied": 1}}}
    assert "upserted" in ranged.versioned(update({**counted(100), **supplied}))
    assert ranged.documents() == [{"_id": 100, "a": 100, "supplied": 1}]
    assert ranged.versioned(update({**counted(100), **supplied})) == {"n": 1, "nModified": 1, "ok": 1.0}
    assert ranged.documents() == [{"_id": 100, "a": 100, "supplied": 1, "n": 1}]


@pytest.mark.parametrize("key", [100, 101])
def test_a_repeated_upsert_is_not_executed_twice(ranged: ShardedNamespace, key: int) -> None:
    number = next(transaction_numbers)
    command = update(counted(100), counted(key), stmtIds=[4, 7])
    first = ranged.retryable(command, number=number)
    again = ranged.retryable(command, number=number)
    assert again.pop("retriedStmtIds") == [4, 7]
    assert again == first
    assert sum(document["n"] for document in ranged.documents()) == 2


def test_a_repeated_upsert_is_recognised_even_if_its_document_is_gone(ranged: ShardedNamespace) -> None:
    number = next(transaction_numbers)
    first = ranged.retryable(update(counted(100)), number=number)
    ranged.versioned({"delete": "c", "deletes": [{"q": {"a": 100}, "limit": 1}]})
    assert ranged.retryable(update(counted(100)), number=number) == {**first, "retriedStmtIds": [0]}
    assert ranged.documents() == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_repeated_find_and_modify_is_not_executed_twice(ranged: ShardedNamespace, is_deleted: bool) -> None:
    number = next(transaction_numbers)
    first = ranged.retryable(find_and_modify(100, new=True), number=number)
    assert first["value"]["n"] == 1
    if is_deleted:
        ranged.versioned({"delete": "c", "deletes": [{"q": {"a": 100}, "limit": 1}]})
    again = ranged.retryable(find_and_modify(100, new=True), number=number)
    assert again == {**first, "retriedStmtId": 0}
    assert [document["n"] for document in ranged.documents()] == ([] if is_deleted else [1])


@pytest.mark.parametrize("command", ["update", "findAndModify"])
def test_a_duplicate_of_another_unique_key_is_an_error(ranged: ShardedNamespace, command: str) -> None:
    unique = {"createIndexes": "c", "indexes": [{"key": {"a": 1, "u": 1}, "name": "u", "unique": True}]}
    assert ranged.versioned(unique)["ok"]
    ranged.insert({"_id": 1, "a": 100, "u": 1})
    query, pipeline = {"a": 100, "_id": 2}, [{"$replaceWith": {"_id": 2, "a": 100, "u": 1}}]
    if command == "update":
        (error,) = ranged.versioned(update({"q": query, "u": pipeline, "upsert": True}))["writeErrors"]
        assert error["errmsg"].startswith("E11000 duplicate key error collection: ")
    else:
        error = ranged.versioned({"findAndModify": "c", "query": query, "update": pipeline, "upsert": True})
        prefix = "Plan executor error during findAndModify :: caused by :: E11000 duplicate key error collection: "
        assert error["errmsg"].startswith(prefix)
    assert (error["code"], error["keyPattern"], error["keyValue"]) == (11000, {"a": 1, "u": 1}, {"a": 100, "u": 1})


@pytest.mark.parametrize(("ordered", "n"), [(True, 2), (False, 3)])
def test_a_batch_of_upserts(ranged: ShardedNamespace, ordered: bool, n: int) -> None:
    beyond = {"q": {"_id": 5, "a": 200}, "u": [{"$replaceWith": {"_id": 5, "a": 5}}], "upsert": True}
    reply = ranged.versioned(update(counted(100), counted(100), beyond, counted(101), ordered=ordered))
    assert (reply["n"], reply["nModified"]) == (n, 1)
    assert [(each["index"], each["_id"]) for each in reply["upserted"]] == [(0, 100), (3, 101)][: n - 1]
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(2, 20)]


def test_a_multi_update_that_inserts_is_checked_too(ranged: ShardedNamespace) -> None:
    statement = {"q": {"_id": 5, "a": 200}, "u": [{"$replaceWith": {"_id": 5, "a": 5}}], "upsert": True, "multi": True}
    (error,) = ranged.versioned(update(statement))["writeErrors"]
    assert error["code"] == 20
    assert ranged.documents() == []
    reply = ranged.versioned(update({**counted(100), "multi": True}))
    assert reply == {"n": 1, "upserted": [{"index": 0, "_id": 100}], "nModified": 0, "ok": 1.0}


def test_the_validator_may_be_bypassed(ranged: ShardedNamespace) -> None:
    assert ranged.run({"collMod": "c", "validator": {"n": {"$gt": 5}}})["ok"]
    (error,) = ranged.versioned(update(counted(100)))["writeErrors"]
    assert (error["code"], error["errmsg"]) == (121, "Document failed validation")
    assert ranged.versioned(update(counted(100), bypassDocumentValidation=True))["n"] == 1
