"""Updates that move a document to another shard: our router before genuine shards, our shards behind a genuine router.

MongoDB's routers make such an update by a delete and an insert in a transaction. What a genuine router does is asked of
a genuine shard, which contains the router's code (`testInternalTransactions`). What it sends to shards is sent by hand,
to genuine ones and to ours.
"""

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.database import Database

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import GenuineCluster
from tests.integration.raw_client import RawClient, raw_client
from tests.interop.comparison import assert_same
from tests.interop.deployment import MAJORITY, Deployment, Document
from tests.interop.sharded import Documents, split_parts

Both = tuple[Deployment, Deployment]

DB: Final = "interop_owners"
NAMESPACE: Final = f"{DB}.ranged"
AUTOCOMMIT: Final[Document] = {"autocommit": False}

_GOSSIP: Final = frozenset(
    {"$clusterTime", "operationTime", "$configTime", "$topologyTime", "lastCommittedOpTime", "electionId", "opTime"}
)


def update(change: object, *, key: int, **fields: object) -> Document:
    return {"update": "ranged", "updates": [{"q": {"key": key, "_id": key}, "u": change, **fields}]}


def modify(change: object, *, key: int, **fields: object) -> Document:
    return {"findAndModify": "ranged", "query": {"key": key, "_id": key}, "update": change, **fields}


AWAY: Final = {"$set": {"key": 80.5}}
UPDATES: Final[dict[str, Document]] = {
    "operators": update(AWAY, key=1),
    "replacement": update({"key": 80.5, "b": 1}, key=1),
    "of nothing": update(AWAY, key=-1),
    "upsert": update({"$setOnInsert": {"key": 80.5}}, key=-1, upsert=True),
    "two": {"update": "ranged", "updates": [*update(AWAY, key=1)["updates"], *update(AWAY, key=2)["updates"]]},
}
MODIFICATIONS: Final[dict[str, tuple[Document, object, int]]] = {
    "old": (modify(AWAY, key=1), {"_id": 1, "key": 1, "even": False}, 1),
    "new": (modify(AWAY, key=1, new=True), {"_id": 1, "key": 80.5, "even": False}, 1),
    "upsert": (modify({"$setOnInsert": {"key": 80.5}}, key=-1, upsert=True), None, -1),
    "upsert, new": (
        modify({"$setOnInsert": {"key": 80.5}}, key=-1, upsert=True, new=True),
        {"_id": -1, "key": 80.5},
        -1,
    ),
}


def session() -> Document:
    """The fields of a new session's first write or transaction."""
    return {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1)}


def stable(reply: Document) -> Document:
    """A reply without the fields that differ from run to run."""
    return {name: value for name, value in reply.items() if name not in _GOSSIP}


@pytest.fixture
def collection(database: Database[Document]) -> Documents:
    """A hundred documents on two genuine shards."""
    return split_parts(database)


@pytest.fixture
def router(genuine: GenuineCluster) -> Iterator[RawClient]:
    """A connection to our router before genuine shards."""
    with raw_client(genuine.routers[0]) as connection:
        yield connection


def by_genuine_router(genuine: GenuineCluster, database: str, command: Document) -> Document:
    """Run a command in a transaction through a genuine router; return its reply, or the error."""
    infos = [{"dbName": database, "command": command}]
    asked = {"testInternalTransactions": 1, "useClusterClient": True, "commandInfos": infos}
    with raw_client(next(iter(genuine.shards.values()))) as shard:
        reply = shard.command(asked)
    return stable(reply["responses"][0] if reply["ok"] else reply)


@pytest.mark.parametrize("name", UPDATES)
def test_in_a_transaction_on_genuine_shards(
    genuine: GenuineCluster, router: RawClient, database: Database[Document], name: str
) -> None:
    left, right = split_parts(database, "ranged"), split_parts(database, "other")
    expected = by_genuine_router(genuine, database.name, UPDATES[name] | {"update": "other"})
    fields = {**session(), **AUTOCOMMIT}
    found = stable(router.command({**UPDATES[name], **fields, "startTransaction": True}, db=database.name))
    found.pop("recoveryToken", None)
    assert found == expected
    ended = router.command({"commitTransaction": 1, **fields})
    assert ended["ok"] == found["ok"], ended
    assert list(left.find().sort("_id")) == list(right.find().sort("_id"))


def test_aborted_on_genuine_shards(router: RawClient, collection: Documents) -> None:
    before = list(collection.find().sort("_id"))
    fields = {**session(), **AUTOCOMMIT}
    statement = {**UPDATES["operators"], **fields, "startTransaction": True}
    assert router.command(statement, db=collection.database.name)["nModified"] == 1
    assert router.command({"abortTransaction": 1, **fields})["ok"]
    assert list(collection.find().sort("_id")) == before


@pytest.mark.parametrize("name", ["operators", "replacement", "upsert"])
def test_a_retryable_update_on_genuine_shards(
    genuine: GenuineCluster, router: RawClient, collection: Documents, name: str
) -> None:
    """It is executed once; a retry finds, as in MongoDB 6.0, that the write has become a transaction."""
    command = {**UPDATES[name], **session()}
    db = collection.database.name
    first = router.command(command, db=db)
    assert (first["ok"], first["n"], "writeErrors" in first) == (1, 1, False), first
    assert collection.count_documents({"key": 80.5}) == 1
    with raw_client(genuine.routers[1]) as other:
        for connection in (router, other):
            assert connection.command(command, db=db)["code"] == ErrorCode.IncompleteTransactionHistory
    assert collection.count_documents({}) == (101 if name == "upsert" else 100)


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("name", MODIFICATIONS)
def test_find_and_modify_on_genuine_shards(
    router: RawClient, collection: Documents, name: str, is_in_transaction: bool
) -> None:
    command, value, identity = MODIFICATIONS[name]
    fields = {**session(), **(AUTOCOMMIT if is_in_transaction else {})}
    starting = {"startTransaction": True} if is_in_transaction else {}
    reply = router.command({**command, **fields, **starting}, db=collection.database.name)
    outcome: Document = {"n": 1, "updatedExisting": identity > 0} | ({} if identity > 0 else {"upserted": identity})
    assert (reply["ok"], reply.get("lastErrorObject"), reply.get("value")) == (1, outcome, value), reply
    if is_in_transaction:
        assert router.command({"commitTransaction": 1, **fields})["ok"]
    assert [each["_id"] for each in collection.find({"key": 80.5})] == [identity]
    assert collection.count_documents({"_id": identity}) == 1


class GenuineRouter:
    """One transaction on a cluster's shards, as a genuine router sends it."""

    def __init__(self, deployment: Deployment, fields: Document) -> None:
        self._deployment = deployment
        self._fields = {**fields, **AUTOCOMMIT}
        self._participants: list[int] = []

    def run(self, shard: int, command: Document) -> Document:
        """Run a statement; the first one of a shard begins the transaction there."""
        starting: Document = {}
        if shard not in self._participants:
            self._participants.append(shard)
            starting = {"startTransaction": True, "readConcern": {"level": "local"}}
        if shard == self._participants[0]:
            starting["coordinator"] = True
        version = {"shardVersion": self._deployment.shard_version(NAMESPACE, shard)}
        return send(self._deployment, shard, {**command, **self._fields, **starting, **version})

    def commit(self) -> Document:
        """Commit on all participants."""
        ids = [{"shardId": self._deployment.shard_ids[shard]} for shard in self._participants]
        command = {"coordinateCommitTransaction": 1, "participants": ids, "coordinator": True}
        command = {**command, **self._fields, "writeConcern": MAJORITY}
        return send(self._deployment, self._participants[0], command, db="admin")


def send(deployment: Deployment, shard: int, command: Document, *, db: str = DB) -> Document:
    """The reply of a shard to a command, with ``readOnly`` last in transactions; elsewhere it means nothing."""
    address = deployment.shards[shard].address
    assert address is not None
    with raw_client(f"{address[0]}:{address[1]}") as connection:
        reply = stable(connection.command(command, db=db))
    is_read_only = reply.pop("readOnly", None)
    return reply | ({"readOnly": is_read_only} if "autocommit" in command else {})


@pytest.fixture(scope="module")
def sharded(both: Both) -> Both:
    """An empty collection with the keys below 50 on the first shard of each cluster."""
    for deployment in both:
        assert deployment.shard_collection(NAMESPACE, {"key": 1})["ok"]
        low, high = deployment.chunks(NAMESPACE)[0]["min"], deployment.chunks(NAMESPACE)[0]["max"]
        assert deployment.split(NAMESPACE, low, high, {"key": 50})["ok"]
        assert deployment.move(NAMESPACE, 1, min={"key": 50}, max=high)["ok"]
    return both


def with_document(deployment: Deployment) -> None:
    """The collection has one document, on the first shard."""
    for shard in (0, 1):
        version = {"shardVersion": deployment.shard_version(NAMESPACE, shard)}
        everything = {"delete": "ranged", "deletes": [{"q": {}, "limit": 0}], **version}
        assert send(deployment, shard, {**everything, "writeConcern": MAJORITY})["ok"]
    insert: Document = {"insert": "ranged", "documents": [{"_id": 1, "key": 1, "n": 1}]}
    insert["shardVersion"] = deployment.shard_version(NAMESPACE, 0)
    assert send(deployment, 0, {**insert, "writeConcern": MAJORITY})["n"] == 1


def documents(deployment: Deployment) -> list[Any]:
    """Return the documents of each shard."""
    commands = [
        {"find": "ranged", "filter": {}, "shardVersion": deployment.shard_version(NAMESPACE, shard)} for shard in (0, 1)
    ]
    return [send(deployment, shard, command)["cursor"]["firstBatch"] for shard, command in enumerate(commands)]


REFUSED: Final[dict[str, Document]] = {
    "update": update(AWAY, key=1),
    "replacement": update({"key": 80.5, "b": 1}, key=1),
    "upsert": update({"$setOnInsert": {"key": 80.5}}, key=-1, upsert=True),
    "findAndModify": modify(AWAY, key=1),
    "findAndModify, upsert": modify({"$setOnInsert": {"key": 80.5}}, key=-1, upsert=True),
}


@pytest.mark.parametrize("is_retryable", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_genuine_router_moves_a_document(sharded: Both, name: str, is_retryable: bool) -> None:
    """The shard refuses the update, also in the transaction, which continues with a delete and an insert."""

    def ask(deployment: Deployment) -> list[Any]:
        with_document(deployment)
        fields = session()
        replies: list[Any] = []
        versioned = {**REFUSED[name], "shardVersion": deployment.shard_version(NAMESPACE, 0)}
        if is_retryable:
            replies.append(send(deployment, 0, {**versioned, **fields, "writeConcern": MAJORITY}))
        router = GenuineRouter(deployment, fields)
        replies.append(refused := router.run(0, REFUSED[name]))
        assert refused["code"] == ErrorCode.WouldChangeOwningShard, refused
        replies.append(router.run(0, {"delete": "ranged", "deletes": [{"q": refused["preImage"], "limit": 1}]}))
        replies.append(router.run(1, {"insert": "ranged", "documents": [refused["postImage"]]}))
        replies.append(router.commit())
        replies.append(documents(deployment))
        if is_retryable:
            replies.append(send(deployment, 0, {**versioned, **fields, "writeConcern": MAJORITY}))
        return replies

    *_, last = assert_same(sharded, ask)
    assert (last.get("code") == ErrorCode.IncompleteTransactionHistory) if is_retryable else last[1], last
