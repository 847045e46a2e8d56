"""Names that are not UTF-8, which drivers do not send. As text, one would be another name."""

from collections.abc import Iterator

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import decode_document
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import UPPER, Document, Documents
from tests.local_cluster import Client, RunningCluster

NAME = "QQ"
"""Stands for two bytes that are not a character."""

REPLACED = "\ufffd\ufffd"


@pytest.fixture
def raw(cluster: RunningCluster) -> Iterator[RawClient]:
    with raw_client(cluster.address("router.0")) as client:
        yield client


def ask(client: RawClient, command: Document, db: str) -> Document:
    """Return the reply to a command in which `NAME` is replaced by bytes that are not a character."""
    body = bson.encode({**command, "$db": db}).replace(NAME.encode(), b"\xff\xfe")
    client.send(op_msg(body, request_id=1))
    return decode_document(client.receive()[21:])


@pytest.mark.parametrize(
    "command",
    [
        {"drop": NAME},
        {"create": NAME},
        {"find": NAME},
        {"insert": NAME, "documents": [{"_id": 2}]},
        {"dropIndexes": NAME, "index": "*"},
        {"collMod": NAME, "validationLevel": "off"},
        {"renameCollection": "{db}." + NAME, "to": "{db}.other"},
        {"renameCollection": "{db}." + REPLACED, "to": "{db}." + NAME},
        {"shardCollection": "{db}." + NAME, "key": {"_id": 1}},
        {"moveChunk": "{db}." + NAME, "find": {"_id": 1}, "to": "shard1"},
    ],
    ids=lambda command: next(iter(command)),
)
def test_a_collection_is_not_taken_for_another(raw: RawClient, placed: Documents, command: Document) -> None:
    database = placed.database
    other = database[REPLACED]
    other.insert_one({"_id": 1})
    told = {name: each.format(db=database.name) if isinstance(each, str) else each for name, each in command.items()}
    is_for_admin = next(iter(command)) in ("renameCollection", "shardCollection", "moveChunk")
    reply = ask(raw, told, "admin" if is_for_admin else database.name)
    assert reply["code"] == ErrorCode.InvalidNamespace
    assert r"\xff\xfe" in reply["errmsg"]
    assert list(other.find()) == [{"_id": 1}]
    assert database.client.config.collections.find_one({"_id": other.full_name}) is None


def test_a_database_is_not_taken_for_another(raw: RawClient, client: Client) -> None:
    other = client[f"{REPLACED}_database"]
    other.things.insert_one({"_id": 1})
    try:
        assert ask(raw, {"dropDatabase": 1}, f"{NAME}_database")["code"] == ErrorCode.InvalidNamespace
        assert other.things.count_documents({}) == 1
    finally:
        client.drop_database(other.name)


def test_a_key_is_refused(raw: RawClient, placed: Documents) -> None:
    for command in ("reshardCollection", "shardCollection", "refineCollectionShardKey"):
        reply = ask(raw, {command: placed.full_name, "key": {"key": 1, NAME: 1}}, "admin")
        assert reply["code"] == ErrorCode.BadValue, command
    placed.insert_one({"key": 700})
    assert placed.count_documents({}) == 1


@pytest.mark.parametrize("dropped", [NAME, "*", {"other": 1}], ids=str)
def test_an_index_may_have_such_a_name(
    raw: RawClient, placed: Documents, lower_mongod: Client, upper_mongod: Client, dropped: object
) -> None:
    """As at a mongod. Chunks move, the collection is changed, and the index is dropped from all shards."""
    database, admin = placed.database, placed.database.client.admin
    index = {"key": {"other": 1}, "name": NAME}
    for _ in range(2):
        assert ask(raw, {"createIndexes": placed.name, "indexes": [index]}, database.name)["ok"] == 1
    for key, shard in ((1, UPPER), (700, "shard0")):
        admin.command("moveChunk", placed.full_name, find={"key": key}, to=shard)
    database.command("collMod", placed.name, validationLevel="moderate")
    assert ask(raw, {"dropIndexes": placed.name, "index": dropped}, database.name)["ok"] == 1
    for mongod in (lower_mongod, upper_mongod):
        indexes = mongod[database.name][placed.name].list_indexes()
        assert [dict(each["key"]) for each in indexes] == [{"_id": 1}, {"key": 1}]


def test_chunks_move_beside_the_history_of_such_a_collection(
    raw: RawClient, placed: Documents, lower_mongod: Client
) -> None:
    """A mongod that was no part of a cluster before may have them."""
    host, port = lower_mongod.address or ("", 0)
    session = {"lsid": {"id": Binary(bytes(range(16)), 4)}, "txnNumber": Int64(1)}
    db = placed.database.name
    with raw_client(f"{host}:{port}") as mongod:
        assert ask(mongod, {"insert": NAME, "documents": [{"_id": 1}], **session}, db)["ok"] == 1
        placed.insert_one({"key": 5})
        placed.database.client.admin.command("moveChunk", placed.full_name, find={"key": 5}, to=UPPER)
        assert placed.count_documents({"key": 5}) == 1
        assert ask(mongod, {"drop": NAME}, db)["ok"] == 1
