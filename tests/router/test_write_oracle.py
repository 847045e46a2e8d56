"""Split writes have the same replies as with MongoDB's own router code.

A genuine shard server carries the code of mongos as ``clusterInsert``, ``clusterUpdate`` and ``clusterDelete``. Each
case is sent to a shard in that form and to our router in front of the same genuine cluster.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from tests.genuine_cluster import SHARDS, genuine_cluster
from tests.local_cluster import Client

DATABASE = "write_oracle"
COLLECTION = "sharded"
NAMESPACE = f"{DATABASE}.{COLLECTION}"
MAJORITY = {"w": "majority"}
STORED: list[dict[str, Any]] = [*({"_id": n, "k": n, "x": n % 3} for n in range(-5, 6)), {"_id": "s", "k": "s"}]

_VOLATILE = frozenset(
    {"operationTime", "$clusterTime", "lastCommittedOpTime", "$configTime", "$topologyTime", "electionId", "opTime"}
)

SET = {"$set": {"y": 1}}
FRENCH = {"locale": "fr"}
UNMET = {"writeConcern": {"w": 5, "wtimeout": 100}}


def insert(*documents: object, **arguments: object) -> dict[str, Any]:
    """An insert command."""
    return {"insert": COLLECTION, "documents": list(documents), **arguments}


def update(*updates: object, **arguments: object) -> dict[str, Any]:
    """An update command."""
    return {"update": COLLECTION, "updates": list(updates), **arguments}


def delete(*deletes: object, **arguments: object) -> dict[str, Any]:
    """A delete command."""
    return {"delete": COLLECTION, "deletes": list(deletes), **arguments}


def rows(*keys: int) -> list[dict[str, Any]]:
    """Documents to insert."""
    return [{"_id": key, "k": key} for key in keys]


UPDATES: list[dict[str, Any]] = [
    {"q": {}, "u": SET},
    {"q": {}, "u": SET, "multi": True},
    {"q": {}, "u": [SET]},
    {"q": {}, "u": []},
    {"q": {}, "u": {}, "multi": True},
    {"q": {}, "u": {"k": [1]}},
    {"q": {}, "u": SET, "c": {}, "arrayFilters": [], "hint": {"_id": 1}, "collation": {"locale": "simple"}},
    {"q": {}, "u": [SET], "c": {"a": 1}, "hint": "_id_", "multi": False, "upsertSupplied": False},
    {"q": {"x": 1}, "u": SET, "upsert": True},
    {"q": {"x": 9}, "u": {"x": 1}},
    {"q": {"_id": 1}, "u": SET},
    {"q": {"_id": {"$in": [1]}}, "u": SET},
    {"q": {"$or": [{"_id": 1}]}, "u": SET},
    {"q": {"_id": {"$gt": 1}}, "u": SET},
    {"q": {"_id": 1}, "u": {"k": 1, "z": 5}},
    {"q": {"_id": 1, "k": 1}, "u": {"_id": 2, "k": 1, "z": 5}},
    {"q": {"k": 1}, "u": SET},
    {"q": {"k": 1.0}, "u": SET},
    {"q": {"k": None}, "u": SET},
    {"q": {"k": {"$gt": 1}}, "u": SET},
    {"q": {"k": {"$gt": -1}}, "u": SET},
    {"q": {"k": {"$in": [1, 2]}}, "u": SET},
    {"q": {"k": {"$in": [-1, 1]}}, "u": SET},
    {"q": {"k": {"$gt": 1}}, "u": SET, "upsert": True},
    {"q": {"k": {"$in": [50]}}, "u": SET, "upsert": True},
    {"q": {"$or": [{"k": 50}]}, "u": SET, "upsert": True},
    {"q": {"$expr": {"$eq": ["$k", 5]}}, "u": SET, "upsert": True},
    {"q": {"k": MaxKey()}, "u": SET, "upsert": True},
    {"q": {"k": -50}, "u": {"k": -50, "_id": 7}, "upsert": True},
    {"q": {"k": 1}, "u": {"$set": {"x": 1}, "y": 1}},
    {"q": {"k": 1}, "u": {"y": 1}, "multi": True},
    {"q": {"k": 1}, "u": {"k": -1}},
    {"q": {"k": 1}, "u": {"k": [1]}},
    {"q": {"k": 1}, "u": {}},
    {"q": {"k": {"$gt": 3}}, "u": {"$set": {"k": -1}}, "multi": True},
    {"q": {"k": 3}, "u": {"$set": {"k": -1}}, "multi": True},
    {"q": {"_id": "a"}, "u": SET, "collation": FRENCH},
    {"q": {"k": "a"}, "u": SET, "collation": FRENCH, "upsert": True},
    {"q": {"k": 1}, "u": SET, "collation": {"locale": "zz"}},
    {"q": {"$foo": 1}, "u": SET},
    {"q": {"$foo": 1}, "u": SET, "upsert": True},
    {"q": {"k": {"$foo": 1}}, "u": SET},
    {"q": {"k": {"$not": {"$foo": 1}}}, "u": SET},
    {"q": {"k": 1}, "u": SET, "multi": None, "upsert": None, "collation": None},
    {"q": {"x": 1}, "u": {"$inc": {"x.y": 1}}, "multi": True},
]

DELETES: list[dict[str, Any]] = [
    {"q": {}, "limit": 0},
    {"q": {}, "limit": 1},
    {"q": {}, "limit": True},
    {"q": {}, "limit": "a"},
    {"q": {}, "limit": 2},
    {"q": {}, "limit": 1, "hint": {"_id": 1}, "collation": {"locale": "simple"}},
    {"q": {"_id": 1}, "limit": 1},
    {"q": {"_id": {"$in": [1]}}, "limit": 1},
    {"q": {"k": 1}, "limit": 1},
    {"q": {"k": {"$gt": 1}}, "limit": 1},
    {"q": {"k": {"$gt": 1}}, "limit": 0},
    {"q": {"k": "a"}, "limit": 1, "collation": FRENCH},
    {"q": {"k": MaxKey()}, "limit": 1},
    {"q": {"k": {"$foo": 1}}, "limit": 1},
    {"q": {"k": {"$foo": 1}}, "limit": 0},
    {"q": {"$where": "throw 1"}, "limit": 0},
    {"q": {"$expr": {"$eq": ["$k", 5]}}, "limit": 1},
]

BATCHES: list[dict[str, Any]] = [
    case | {"ordered": ordered}
    for ordered in (True, False)
    for case in (
        insert(*rows(-20, 20)),
        insert(*rows(-20, -5, 20, 1)),
        insert(*rows(-20, 1, 2, 20, -21)),
        insert({"_id": 20, "k": 20}, {"_id": 21, "k": [1]}, {"_id": -20, "k": -20}),
        insert({"_id": 20, "k": MaxKey()}, {"_id": -20, "k": -20}),
        insert(*rows(-20, 20), **UNMET),
        insert(*rows(-20, 1, 2), **UNMET),
        insert(*rows(20), **UNMET),
        insert(*rows(1), **UNMET),
        insert(*rows(-20, 20), writeConcern={"w": 0}),
        update({"q": {"x": 1}, "u": {"$inc": {"x.y": 1}}, "multi": True}, {"q": {"k": 1}, "u": SET}),
        update(
            {"q": {}, "u": SET, "multi": True}, {"q": {"_id": 3}, "u": SET}, {"q": {"k": 1}, "u": {"$set": {"z": 1}}}
        ),
        update(*[{"q": {"k": key}, "u": SET, "upsert": True} for key in (-10, 10, -11, 11)]),
        update(
            {"q": {"k": 10}, "u": SET, "upsert": True}, {"q": {}, "u": SET}, {"q": {"k": -10}, "u": SET, "upsert": True}
        ),
        delete(*[{"q": {"k": key}, "limit": 1} for key in (-1, 1, 9, -2)]),
        delete({"q": {"k": 1}, "limit": 1}, {"q": {}, "limit": 1}, {"q": {"_id": 3}, "limit": 1}),
    )
] + [
    insert(),
    update(),
    delete(),
    update({"u": SET}),
    update({"q": {}}),
    update({"q": 1, "u": SET}),
    update({"q": {}, "u": 1}),
    update({"q": {}, "u": [1]}),
    update({"q": {}, "u": SET, "multi": 1}),
    update({"q": {"k": 1}, "u": SET, "foo": 1}),
    update({"q": {"k": 1}, "u": SET}, ordered="x"),
    delete({"q": {}}),
    delete({"limit": 1}),
    delete({"q": 1, "limit": 1}),
    delete({"q": {}, "limit": 1, "foo": 1}),
]

CASES = [*map(update, UPDATES), *map(delete, DELETES), *BATCHES]


@pytest.fixture(scope="module")
def clients(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    """Clients of our router and of a genuine shard server, with a collection sharded over both shards."""
    with (
        genuine_cluster(mongod_binary, tmp_path_factory.mktemp("genuine"), routers=1) as cluster,
        cluster.client(retryWrites=False) as router,
        cluster.direct(cluster.shards[SHARDS[0]]) as shard,
    ):
        router.admin.command("enableSharding", DATABASE, primaryShard=SHARDS[0])
        router.admin.command("shardCollection", NAMESPACE, key={"k": 1})
        router.admin.command("split", NAMESPACE, middle={"k": 0})
        bounds = [{"k": MinKey()}, {"k": 0}]
        router.admin.command("moveChunk", NAMESPACE, bounds=bounds, to=SHARDS[1])
        yield router, shard


def answer(client: Client, command: dict[str, Any], database: str = DATABASE) -> dict[str, Any]:
    """The reply to a command, without the fields that always differ."""
    try:
        reply = dict(client[database].command(command))
    except OperationFailure as error:
        reply = dict(error.details or {})
    return {name: value for name, value in reply.items() if name not in _VOLATILE}


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply with new ``_id``s made equal, and sorted by batch and shard where MongoDB orders by time."""
    for entry in reply.get("upserted", ()):
        if isinstance(entry["_id"], ObjectId):
            entry["_id"] = "new"
    reply["upserted"] = sorted(reply.get("upserted", ()), key=lambda entry: int(entry["index"]))
    if "writeConcernError" in reply:
        beginning, _, messages = reply["writeConcernError"]["errmsg"].rpartition(" reported : ")
        reply["writeConcernError"]["errmsg"] = (beginning, sorted(messages.split(" :: and :: ")))
    return reply


@pytest.mark.parametrize("command", CASES, ids=str)
def test_router_answers_like_mongodbs_own(clients: tuple[Client, Client], command: dict[str, Any]) -> None:
    router, shard = clients
    name, *_ = command
    genuine = {f"cluster{name.capitalize()}": COLLECTION, **{key: command[key] for key in command if key != name}}
    replies = []
    for client, sent in ((shard, genuine), (router, command)):
        router[DATABASE][COLLECTION].delete_many({})
        router[DATABASE][COLLECTION].insert_many(STORED)
        documents = router[DATABASE][COLLECTION].find({}, {"_id": 0}).sort("k")
        replies.append((comparable(answer(client, sent)), list(documents)))
    assert replies[1] == replies[0]


@pytest.mark.parametrize("database", ["local", "admin", "config"])
def test_databases_of_the_cluster_itself(clients: tuple[Client, Client], database: str) -> None:
    router, shard = clients
    documents = [{"_id": 1}]
    genuine = answer(shard, {"clusterInsert": "write_oracle", "documents": documents}, database)
    answer(router, {"delete": "write_oracle", "deletes": [{"q": {}, "limit": 0}]}, database)
    assert answer(router, {"insert": "write_oracle", "documents": documents}, database) == genuine
