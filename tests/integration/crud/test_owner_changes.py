"""Updates that change a shard key so that the document belongs to another shard: as any other update of a mongod."""

from collections.abc import Iterator
from typing import Final

import pytest

from shardwright.wire.error_codes import ErrorCode
from tests.integration.retryable_writes import RetryingSession, increments, inserts, retrying_session
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.local_cluster import Client, RunningCluster

LOW, HIGH = 100, 600


@pytest.fixture
def session(cluster: RunningCluster, ranged: Documents) -> Iterator[RetryingSession]:
    """A session whose collection has a document on the lower shard, on the routers and on a lone mongod."""
    with retrying_session(cluster, ranged.database.name) as session:
        session.compare({"insert": "ranged", "documents": [{"_id": 1, "key": LOW, "n": 1, "a": [1, 2]}]}, 1)
        yield session


def update(change: object, *, key: object = LOW, **fields: object) -> Document:
    return {"update": "ranged", "updates": [{"q": {"key": key, "_id": 1}, "u": change, **fields}]}


def modified(change: object, *, key: object = LOW, **fields: object) -> Document:
    return {"findAndModify": "ranged", "query": {"key": key, "_id": 1}, "update": change, **fields}


def upserted(change: object, **fields: object) -> Document:
    return {"update": "ranged", "updates": [{"q": OTHER, "u": change, **fields}]}


def inserted_by_modify(change: object, **fields: object) -> Document:
    return {"findAndModify": "ranged", "query": OTHER, "update": change, **fields}


OTHER = {"key": 101, "_id": 7}
AWAY = {"$set": {"key": HIGH}, "$inc": {"n": 1}}
SUPPLIED = {"$setOnInsert": {"key": HIGH}}

COMMANDS: dict[str, Document] = {
    "operators": update(AWAY),
    "replacement": update({"key": HIGH, "b": 1}),
    "pipeline": update([{"$set": {"key": {"$add": ["$key", 500]}, "b": "$n"}}]),
    "array filters": update({"$set": {"key": HIGH, "a.$[big]": 7}}, arrayFilters=[{"big": {"$gt": 1}}]),
    "upsert that finds a document": update(AWAY, upsert=True),
    "of nothing": update(AWAY, key=101),
    "findAndModify": modified(AWAY),
    "findAndModify, new": modified(AWAY, new=True),
    "findAndModify, fields": modified(AWAY, new=True, fields={"n": 1}),
    "findAndModify, sort": modified(AWAY, sort={"n": -1}),
    "findAndModify, replacement": modified({"key": HIGH, "b": 1}, new=True),
    "findAndModify, pipeline": modified([{"$set": {"key": HIGH, "b": "$n"}}], new=True),
    "findAndModify of nothing": modified(AWAY, key=101),
    "with statement ids": {**update(AWAY), "stmtIds": [5]},
    "with a statement id": {**modified(AWAY), "stmtId": 5},
    "upsert": upserted(SUPPLIED, upsert=True),
    "upsert of a replacement": upserted({"key": HIGH, "b": 1}, upsert=True),
    "findAndModify, upsert": inserted_by_modify(SUPPLIED, upsert=True),
    "findAndModify, upsert, new": inserted_by_modify(SUPPLIED, upsert=True, new=True),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_retryable_write(session: RetryingSession, ranged: Documents, name: str) -> None:
    """Its retry, through either router, is answered like the retry of any other update."""
    for router in (0, 1, 0):
        session.compare(COMMANDS[name], 2, router=router)
    assert list(ranged.find()) == session.documents_on_mongod()
    session.compare(update({"$inc": {"n": 1}}, key={"$gte": 0}), 3)
    assert list(ranged.find()) == session.documents_on_mongod()


@pytest.mark.parametrize("new", [False, True])
def test_a_document_that_is_nested_too_deeply_for_its_image(
    session: RetryingSession, ranged: Documents, new: bool
) -> None:
    """The shard cannot prepare the transaction, and says so at once; a lone mongod refuses it, too."""
    nested: Document = {}
    for _ in range(180):
        nested = {"a": nested}
    session.compare({"insert": "ranged", "documents": [{"_id": 7, "key": 101, **nested}]}, 2)
    command = inserted_by_modify(AWAY, new=new)
    found, expected = session.run(command, 3), session.on_mongod(command, 3)
    assert (found["code"], found["codeName"]) == (expected["code"], expected["codeName"])
    assert found["errmsg"].endswith("Document exceeds maximum nesting depth of 180")
    assert ranged.count_documents({"_id": 7, "key": 101}) == 1


def test_the_document_is_on_its_shard(
    session: RetryingSession, ranged: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    session.run(update(AWAY), 2)
    counts = [mongod[ranged.database.name].ranged.count_documents({}) for mongod in (lower_mongod, upper_mongod)]
    assert counts == [0, 1]
    session.run(update({"$set": {"key": LOW}}, key=HIGH), 3, router=1)
    counts = [mongod[ranged.database.name].ranged.count_documents({}) for mongod in (lower_mongod, upper_mongod)]
    assert counts == [1, 0]


TRANSACTION: Document = {"autocommit": False}
READ: Document = {"find": "ranged", "sort": {"_id": 1}}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("ending", ["commitTransaction", "abortTransaction"])
def test_in_a_transaction(session: RetryingSession, ranged: Documents, name: str, ending: str) -> None:
    """The transaction sees the document where it belongs, and others see it once the transaction is committed."""
    command = {field: value for field, value in COMMANDS[name].items() if field not in ("stmtId", "stmtIds")}
    before = list(ranged.find())
    session.compare_in_transaction({**command, **TRANSACTION, "startTransaction": True}, 2)
    session.compare_in_transaction({**update({"$inc": {"n": 1}}, key={"$gte": 0}), **TRANSACTION}, 2)
    session.compare_in_transaction({**READ, **TRANSACTION}, 2)
    assert list(ranged.find()) == before
    session.compare_in_transaction({ending: 1, **TRANSACTION}, 2, db="admin")
    assert list(ranged.find().sort("_id")) == session.documents_on_mongod()


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_what_a_client_may_bypass(
    session: RetryingSession, ranged: Documents, client: Client, is_in_transaction: bool
) -> None:
    """The deletion and the insertion bypass what the update may bypass, and nothing else."""
    ranged.database.command("collMod", "ranged", validator={"n": {"$type": "int"}})
    begun = {**TRANSACTION, "startTransaction": True} if is_in_transaction else {}
    valid, invalid = ({**update({"$set": {"key": HIGH, "n": n}}), **begun} for n in (2, "x"))
    unblocked: Document = {"mayBypassWriteBlocking": True}

    def refusal(command: Document, number: int) -> int:
        return int(session.run(command, number)["writeErrors"][0]["code"])

    client.admin.command({"setUserWriteBlockMode": 1, "global": True})
    try:
        assert refusal(valid, 2) == ErrorCode.UserWritesBlocked
        assert refusal({**invalid, "bypassDocumentValidation": True}, 3) == ErrorCode.UserWritesBlocked
        assert refusal({**invalid, **unblocked}, 4) == ErrorCode.DocumentValidationFailure
        assert session.run({**invalid, **unblocked, "bypassDocumentValidation": True}, 5)["nModified"] == 1
        if is_in_transaction:
            commit = {"commitTransaction": 1, **TRANSACTION, **unblocked}
            assert session.run(commit, 5, db="admin")["ok"] == 1.0
    finally:
        client.admin.command({"setUserWriteBlockMode": 1, "global": False})
        ranged.database.command("collMod", "ranged", validator={})  # other tests use the collection
    assert list(ranged.find()) == [{"_id": 1, "key": HIGH, "n": "x", "a": [1, 2]}]


def test_in_a_transaction_after_other_statements(session: RetryingSession, ranged: Documents) -> None:
    """The document was inserted and updated by the same transaction, and comes back in it."""
    statements: list[Document] = [
        {**inserts(200, 700), "startTransaction": True},
        increments(200, 700),
        {"update": "ranged", "updates": [{"q": {"key": 200}, "u": {"$set": {"key": 701}}}]},
        {"update": "ranged", "updates": [{"q": {"key": 700}, "u": {"$set": {"key": 201}}}]},
        {"update": "ranged", "updates": [{"q": {"key": 701}, "u": {"$set": {"key": 202}}}]},
        update(AWAY),
        READ,
    ]
    for statement in statements:
        session.compare_in_transaction({**statement, **TRANSACTION}, 2)
    session.compare_in_transaction({"commitTransaction": 1, **TRANSACTION}, 2, db="admin")
    assert list(ranged.find().sort("_id")) == session.documents_on_mongod()


def test_an_id_that_the_other_shard_has(session: RetryingSession, ranged: Documents) -> None:
    ranged.insert_one({"_id": 1, "key": 601})
    for command in (update(AWAY), modified(AWAY)):
        reply = session.run(command, 2)
        error = reply["writeErrors"][0] if "writeErrors" in reply else reply
        assert error["code"] == 11000
        assert error["errmsg"].startswith(
            "Failed to update document's shard key field. There is either an orphan for this document or _id for this "
            "collection is not globally unique. :: caused by :: During insert stage of updating a shard key :: "
            "caused by :: E11000 duplicate key error"
        )
        assert error["keyPattern"] == {"_id": 1}
        assert sorted(each["key"] for each in ranged.find()) == [LOW, 601]
    assert "errorLabels" not in session.run(update(AWAY), 4)


NOT_ALLOWED: dict[str, tuple[Document, int]] = {
    "without the key in the query": ({"update": "ranged", "updates": [{"q": {"_id": 1}, "u": AWAY}]}, 31025),
    "an array": (update({"$set": {"key": [HIGH]}}), 54),
    "two statements": ({"update": "ranged", "updates": [*update(AWAY)["updates"], *update(AWAY)["updates"]]}, 72),
    "many": (update(AWAY, multi=True), 72),
}


@pytest.mark.parametrize("name", NOT_ALLOWED)
@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_what_is_not_allowed(session: RetryingSession, ranged: Documents, name: str, is_in_transaction: bool) -> None:
    command, code = NOT_ALLOWED[name]
    fields = {**TRANSACTION, "startTransaction": True} if is_in_transaction else {}
    reply = session.run({**command, **fields}, 2)
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert error["code"] == code, reply
    if is_in_transaction:
        ended = session.run({"commitTransaction": 1, **TRANSACTION}, 2, db="admin")
        assert ended["code"] == 251, ended
    assert [each["key"] for each in ranged.find()] == [LOW]


def test_without_a_number(session: RetryingSession, ranged: Documents) -> None:
    for command in (update(AWAY), modified(AWAY)):
        reply = session.routers[0].command(command, db=ranged.database.name)
        error = reply["writeErrors"][0] if "writeErrors" in reply else reply
        assert (error["code"], error["errmsg"]) == (
            20,
            "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
        )


@pytest.fixture
def movable(cluster: RunningCluster, placed: Documents) -> Iterator[RetryingSession]:
    """As `session`, on a collection whose chunks may move."""
    with retrying_session(cluster, placed.database.name) as session:
        session.compare({"insert": "ranged", "documents": [{"_id": 1, "key": LOW, "n": 1, "a": [1, 2]}]}, 1)
        yield session


MOVED: Final = ("operators", "upsert", "findAndModify", "findAndModify, new", "findAndModify, upsert, new")


@pytest.mark.parametrize("name", MOVED)
def test_a_retry_after_a_move(movable: RetryingSession, placed: Documents, name: str) -> None:
    """The new owner of the old key answers for the update."""
    admin = placed.database.client.admin
    admin.command("split", placed.full_name, middle={"key": 300})
    first = movable.compare(COMMANDS[name], 2)
    admin.command("moveChunk", placed.full_name, find={"key": LOW}, to=UPPER)
    again = movable.compare(COMMANDS[name], 2, router=1)
    assert again != first
    admin.command("moveChunk", placed.full_name, find={"key": LOW}, to=LOWER)
    movable.compare(COMMANDS[name], 2)
    assert list(placed.find().sort("_id")) == movable.documents_on_mongod()
