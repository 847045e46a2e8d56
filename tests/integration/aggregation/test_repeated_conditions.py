"""Conditions with two fields of one name, which drivers do not send: every shard has both, however it gets them."""

from collections.abc import Iterator
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure, WriteError

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import LOWER, UPPER, Document, placement
from tests.local_cluster import Client, RunningCluster


def between(low: int, high: int) -> RawBSONDocument:
    """The condition ``{a: {$gt: low}, a: {$lt: high}}``."""
    return RawBSONDocument(bson.encode({"a": {"$gt": low}, "b": {"$lt": high}}).replace(b"\x03b\0", b"\x03a\0"))


CONDITION: Final = between(1, 5)
NESTED: Final = {"$or": [CONDITION, {"free": True}]}
OTHER: Final = between(2, 5)
INDEX: Final = {"key": {"other": 1}, "name": "partial", "partialFilterExpression": CONDITION}


@pytest.fixture
def raw(cluster: RunningCluster) -> Iterator[RawClient]:
    with raw_client(cluster.address("router.0")) as client:
        yield client


def ask(client: RawClient, db: str, command: Document) -> None:
    """Run a command whose reply says that it has succeeded."""
    client.send(op_msg(bson.encode({**command, "$db": db}), request_id=1))
    reply = bson.decode(client.receive()[21:])
    assert reply["ok"] == 1, reply


def described(mongod: Client, database: Database[Document], name: str) -> dict[str, bytes]:
    """The validator of a collection, and the filter of its partial index, as one mongod stores them."""
    codec = database.codec_options.with_options(document_class=RawBSONDocument)
    local: Database[Any] = mongod[database.name]
    entry = local.command("listCollections", filter={"name": name}, codec_options=codec)["cursor"]["firstBatch"][0]
    indexes = local.command("listIndexes", name, codec_options=codec)["cursor"]["firstBatch"]
    partial = [each["partialFilterExpression"].raw for each in indexes if each["name"] == INDEX["name"]]
    return {"validator": entry["options"]["validator"].raw, "filter": partial[0]}


EXPECTED: Final = {"validator": bson.encode(NESTED), "filter": CONDITION.raw}


@pytest.fixture
def name(raw: RawClient, database: Database[Document]) -> str:
    """The name of an unsharded collection with these conditions."""
    ask(raw, database.name, {"create": "things", "validator": NESTED})
    ask(raw, database.name, {"createIndexes": "things", "indexes": [INDEX]})
    return "things"


def assert_validated(database: Database[Document], name: str, **fields: object) -> None:
    collection = database[name]
    collection.insert_one({"a": 3, **fields})
    for refused in (1, 5):
        with pytest.raises(WriteError) as failure:
            collection.insert_one({"a": refused, **fields})
        assert failure.value.code == ErrorCode.DocumentValidationFailure


def test_a_shard_gets_them_with_its_first_chunk(database: Database[Document], name: str, upper_mongod: Client) -> None:
    admin, namespace = database.client.admin, f"{database.name}.{name}"
    admin.command("shardCollection", namespace, key={"key": 1})
    admin.command("moveChunk", namespace, find={"key": 0}, to=UPPER)
    assert described(upper_mongod, database, name) == EXPECTED
    assert_validated(database, name, key=1)


def test_a_shard_without_chunks_is_brought_up_to_date(
    raw: RawClient, database: Database[Document], name: str, upper_mongod: Client
) -> None:
    admin, namespace = database.client.admin, f"{database.name}.{name}"
    admin.command("shardCollection", namespace, key={"key": 1})
    for shard in (UPPER, LOWER):
        admin.command("moveChunk", namespace, find={"key": 0}, to=shard, _waitForDelete=True)
    upper_mongod[database.name].command("collMod", name, validator=OTHER)
    upper_mongod[database.name].command("dropIndexes", name, index=INDEX["name"])
    upper_mongod[database.name].command("createIndexes", name, indexes=[{**INDEX, "partialFilterExpression": OTHER}])
    admin.command("moveChunk", namespace, find={"key": 0}, to=UPPER)
    assert described(upper_mongod, database, name) == EXPECTED


def test_shards_get_them_with_initial_chunks(database: Database[Document], name: str, upper_mongod: Client) -> None:
    database.client.admin.command("shardCollection", f"{database.name}.{name}", key={"key": "hashed"})
    assert described(upper_mongod, database, name) == EXPECTED


def test_the_next_primary_shard_gets_them(
    database: Database[Document], name: str, lower_mongod: Client, upper_mongod: Client
) -> None:
    admin = database.client.admin
    database.create_collection("sharded")
    admin.command("shardCollection", f"{database.name}.sharded", key={"key": 1})
    for mongod, shard in ((upper_mongod, UPPER), (lower_mongod, LOWER)):
        admin.command("movePrimary", database.name, to=shard)
        assert described(mongod, database, name) == EXPECTED
    assert_validated(database, name)


def test_the_next_primary_shard_gets_them_of_sharded_collections(
    database: Database[Document], name: str, upper_mongod: Client
) -> None:
    admin = database.client.admin
    admin.command("shardCollection", f"{database.name}.{name}", key={"key": 1})
    admin.command("movePrimary", database.name, to=UPPER)
    assert described(upper_mongod, database, name) == EXPECTED


def test_resharding_keeps_them(
    database: Database[Document], name: str, lower_mongod: Client, upper_mongod: Client
) -> None:
    admin, namespace = database.client.admin, f"{database.name}.{name}"
    admin.command("shardCollection", namespace, key={"key": 1})
    database[name].insert_one({"a": 3, "key": 1, "new": 1})
    admin.command("reshardCollection", namespace, key={"new": 1}, numInitialChunks=1)
    [owner] = placement(database.client, namespace)
    assert described(lower_mongod if owner == LOWER else upper_mongod, database, name) == EXPECTED
    assert_validated(database, name, new=2)


def test_coll_mod_sets_them_on_all_shards(
    raw: RawClient, database: Database[Document], name: str, lower_mongod: Client, upper_mongod: Client
) -> None:
    admin, namespace = database.client.admin, f"{database.name}.{name}"
    ask(raw, database.name, {"collMod": name, "validator": OTHER})
    assert described(lower_mongod, database, name)["validator"] == OTHER.raw
    admin.command("shardCollection", namespace, key={"key": 1})
    admin.command("split", namespace, middle={"key": 0})
    admin.command("moveChunk", namespace, find={"key": 0}, to=UPPER)
    ask(raw, database.name, {"collMod": name, "validator": CONDITION})
    for mongod in (lower_mongod, upper_mongod):
        assert described(mongod, database, name)["validator"] == CONDITION.raw
    reply = database.command("checkMetadataConsistency", name, checkIndexes=True)
    assert reply["cursor"]["firstBatch"] == []
    upper_mongod[database.name].command("collMod", name, validator={"a": {"$lt": 5}})
    reply = database.command("checkMetadataConsistency", name)
    assert [each["type"] for each in reply["cursor"]["firstBatch"]] == ["CollectionOptionsMismatch"]


def test_indexes_are_built_with_them_on_all_shards(
    raw: RawClient, database: Database[Document], name: str, lower_mongod: Client, upper_mongod: Client
) -> None:
    admin, namespace = database.client.admin, f"{database.name}.{name}"
    database[name].drop_index(str(INDEX["name"]))
    admin.command("shardCollection", namespace, key={"key": "hashed"})
    ask(raw, database.name, {"createIndexes": name, "indexes": [INDEX]})
    for mongod in (lower_mongod, upper_mongod):
        assert described(mongod, database, name)["filter"] == CONDITION.raw


def test_an_existing_collection_with_them_is_told_from_another(
    raw: RawClient, database: Database[Document], name: str
) -> None:
    ask(raw, database.name, {"create": name, "validator": NESTED})
    with pytest.raises(OperationFailure) as failure:
        database.command({"create": name, "validator": {"$or": [{"a": {"$lt": 5}}, {"free": True}]}})
    assert failure.value.code == ErrorCode.NamespaceExists


def test_a_change_that_a_former_primary_has_left_behind_has_them(
    raw: RawClient, cluster: RunningCluster, database: Database[Document], name: str
) -> None:
    """The document of a coordinator has the conditions as they are."""
    database.client.admin.command("shardCollection", f"{database.name}.{name}", key={"key": 1})
    with cluster.direct("shard0.0.shardd") as shard, cluster.direct("shard0.0.mongod") as mongod:
        with fail_point(shard, "hangInDDLCoordinator", operationType="collMod_V2", at="UpdateShards") as hanging:
            raw.send(op_msg(bson.encode({"collMod": name, "validator": CONDITION, "$db": database.name}), request_id=1))
            hanging.wait_entered()
            codec = database.codec_options.with_options(document_class=RawBSONDocument)
            coordinators: Any = mongod.config.get_collection("system.sharding_ddl_coordinators", codec)
            found = coordinators.find_one({"_id.namespace": f"{database.name}.{name}"})
        assert found["collModRequest"]["validator"].raw == CONDITION.raw
        assert bson.decode(raw.receive()[21:])["ok"] == 1
