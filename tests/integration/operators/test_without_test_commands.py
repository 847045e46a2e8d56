"""A cluster whose mongods have no test commands, and so no two-phase commit: all else works, and that says why not."""

from collections.abc import Iterator
from typing import Final
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.integration.raw_client import raw_client
from tests.integration.routers import router_of
from tests.integration.sharded import Document, Documents
from tests.shardd.mini_cluster import MiniCluster, mini_cluster

pytestmark = pytest.mark.exhaustive

LOW, HIGH = {"_id": 1, "key": 1}, {"_id": 900, "key": 900}
REASON: Final = "--setParameter enableTestCommands=1"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Two shards."""
    with mini_cluster(tmp_path_factory.mktemp("plain"), has_test_commands=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def address(plain: MiniCluster) -> Iterator[str]:
    """Of a router."""
    with router_of(plain.config.connection_string) as (address, _):
        yield address


@pytest.fixture
def things(address: str) -> Iterator[Documents]:
    """A collection with a document on each shard."""
    with MongoClient[Document](f"mongodb://{address}/") as client:
        client.admin.command("enableSharding", "plain", primaryShard="sh0")
        client.admin.command("shardCollection", "plain.things", key={"key": 1})
        client.admin.command("split", "plain.things", middle={"key": 500})
        client.admin.command("moveChunk", "plain.things", find={"key": 500}, to="sh1")
        client.plain.things.insert_many([LOW, HIGH])
        yield client.plain.things
        client.drop_database("plain")


def test_writes_can_be_repeated(address: str, things: Documents) -> None:
    numbered = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1)}
    batch = {"insert": "things", "documents": [{"_id": 2, "key": 2}, {"_id": 901, "key": 901}], **numbered}
    with raw_client(address) as router:
        assert router.command(batch, db="plain")["n"] == 2
        assert router.command(batch, db="plain")["retriedStmtIds"] == [0, 1]
    assert things.count_documents({}) == 4


def test_transactions_with_one_writing_shard_are_committed(things: Documents) -> None:
    with things.database.client.start_session() as session:
        with session.start_transaction():
            things.update_one(LOW, {"$set": {"x": 1}}, session=session)
        with session.start_transaction():
            assert things.count_documents({}, session=session) == 2
        with session.start_transaction():
            assert things.find_one(LOW, session=session) is not None
            things.update_one(HIGH, {"$set": {"x": 1}}, session=session)
    with things.database.client.start_session(snapshot=True) as snapshot:
        assert [each["x"] for each in things.find({}, session=snapshot)] == [1, 1]


def test_chunks_move(things: Documents) -> None:
    things.database.client.admin.command("moveChunk", "plain.things", find={"key": 1}, to="sh1")
    assert things.count_documents({}) == 2


def test_transactions_with_two_writing_shards_say_what_is_missing(things: Documents) -> None:
    with things.database.client.start_session() as session:
        session.start_transaction()
        things.update_many({}, {"$set": {"x": 1}}, session=session)
        with pytest.raises(OperationFailure, match=REASON) as refused:
            session.commit_transaction()
    check_refused(refused.value)
    assert things.count_documents({"x": 1}) == 0
    things.update_many({}, {"$set": {"x": 2}})  # nothing holds the documents


def test_updates_that_move_a_document_say_what_is_missing(things: Documents) -> None:
    with pytest.raises(OperationFailure, match=REASON) as refused:
        things.update_one(LOW, {"$set": {"key": 700}})
    check_refused(refused.value)
    with things.database.client.start_session() as session:
        session.start_transaction()
        things.update_one(LOW, {"$set": {"key": 700}}, session=session)
        with pytest.raises(OperationFailure, match=REASON) as refused:
            session.commit_transaction()
    check_refused(refused.value)
    assert list(things.find({}, sort=[("key", 1)])) == [LOW, HIGH]


def check_refused(error: OperationFailure) -> None:
    """Whether a driver does not retry, because a repetition would fail as well."""
    assert error.code == 263
    assert not error.has_error_label("TransientTransactionError")
    assert not error.has_error_label("RetryableWriteError")
