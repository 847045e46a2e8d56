"""Write commands have the same replies through the router as on a plain mongod, on sharded and other collections.

Every case is a list of commands on one collection that begins with the documents of `STORED`. It runs on a database of
a shard's mongod without a router, on an unsharded collection, and on one whose documents lie on both shards.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster

DATABASE = "write_compatibility"
STORED = [{"_id": n, "k": n, "x": n % 3, "a": [{"b": 1}, {"b": 2}]} for n in range(-5, 6)]

_runs = count(1)

# Fields that a router omits, and fields that differ between servers.
_VOLATILE = frozenset({"operationTime", "$clusterTime", "electionId", "opTime"})


def insert(*documents: dict[str, Any], **arguments: object) -> dict[str, Any]:
    """An insert command; the collection is filled in by the test."""
    return {"insert": None, "documents": list(documents), **arguments}


def update(*updates: dict[str, Any], **arguments: object) -> dict[str, Any]:
    """An update command."""
    return {"update": None, "updates": list(updates), **arguments}


def delete(*deletes: dict[str, Any], **arguments: object) -> dict[str, Any]:
    """A delete command."""
    return {"delete": None, "deletes": list(deletes), **arguments}


def modify(query: dict[str, Any], **arguments: object) -> dict[str, Any]:
    """A findAndModify command."""
    return {"findAndModify": None, "query": query, **arguments}


def key(n: int) -> dict[str, Any]:
    """A filter that names one document by its shard key."""
    return {"_id": n, "k": n}


def row(n: int, **fields: object) -> dict[str, Any]:
    """A document to insert."""
    return {"_id": n, "k": n, **fields}


SET = {"$set": {"y": 1}}
LARGE = "x" * (8 << 20)


def nested(levels: int) -> dict[str, Any]:
    """A document with this many levels."""
    document: dict[str, Any] = {}
    for _ in range(levels - 1):
        document = {"d": document}
    return document


def retryable(number: int) -> dict[str, Any]:
    """The arguments of a retryable write."""
    return {"txnNumber": Int64(number)}


CASES: dict[str, list[dict[str, Any]]] = {
    "insert_one": [insert(row(10))],
    "insert_on_both_shards": [insert(row(10), row(-10), row(11))],
    "insert_many": [insert(*[row(n) for n in range(-600, 600) if abs(n) > 5], ordered=False)],
    "insert_with_options": [insert(row(10), row(-10), comment="mine", bypassDocumentValidation=True, maxTimeMS=60_000)],
    "insert_duplicates_ordered": [insert(row(10), row(-5), row(11), row(1))],
    "insert_duplicates_unordered": [insert(row(10), row(-5), row(11), row(1), row(-10), ordered=False)],
    "insert_nothing": [insert()],
    "insert_too_many": [insert(*[{}] * 100_001)],
    "insert_array_as_id": [
        insert({"_id": [1], "k": 1}, row(10)),
        insert({"_id": [1], "k": 1}, row(-10), ordered=False),
    ],
    "insert_undefined_command_field": [insert(row(10), row(-10), wrong=1)],
    "insert_too_large": [insert(row(10, s=LARGE, t=LARGE + "x" * 900), row(-10), ordered=False)],
    "insert_too_deep": [insert(row(10, d=nested(181)), row(-10, d=nested(100)), ordered=False)],
    "insert_again_retryable": [insert(row(10), row(-10), **retryable(1)), insert(row(10), row(-10), **retryable(1))],
    "insert_again_in_part": [
        insert(row(10), **retryable(2)),
        insert(row(10), row(-10), row(11), ordered=False, **retryable(2)),
        insert(row(10), row(-10), row(11), **retryable(2)),
    ],
    "update_by_key": [update({"q": key(1), "u": SET}), update({"q": key(1), "u": SET})],
    "update_by_id": [update({"q": {"_id": -3}, "u": SET}), update({"q": {"_id": 99}, "u": SET})],
    "update_replacement": [update({"q": key(2), "u": {"k": 2, "new": True}})],
    "update_replacement_by_id": [update({"q": {"_id": -2}, "u": {"k": -2, "new": True}})],
    "update_pipeline": [update({"q": key(2), "u": [{"$set": {"z": {"$add": ["$x", 1]}}}]})],
    "update_many_on_all": [update({"q": {}, "u": SET, "multi": True}), update({"q": {}, "u": SET, "multi": True})],
    "update_many_with_options": [
        update(
            {
                "q": {"x": 1},
                "u": {"$inc": {"a.$[e].b": 10}},
                "arrayFilters": [{"e.b": 2}],
                "multi": True,
                "hint": {"_id": 1},
                "collation": {"locale": "fr"},
            }
        )
    ],
    "update_variables": [
        update({"q": key(1), "u": [{"$set": {"z": "$$v"}}], "c": {"v": 5}}),
        update({"q": {"$expr": {"$eq": ["$k", "$$v"]}}, "u": SET, "multi": True}, let={"v": 3}),
    ],
    "update_upserts": [
        update(*[{"q": key(n), "u": SET, "upsert": True} for n in (10, -10, 1, 11, -11)]),
        update(*[{"q": key(n), "u": SET, "upsert": True} for n in (20, -20, 1, 21, -21)], ordered=False),
    ],
    "update_upsert_replacement": [update({"q": key(30), "u": {"k": 30, "new": True}, "upsert": True})],
    "update_errors_ordered": [
        update({"q": key(1), "u": SET}, {"q": key(-1), "u": {"$inc": {"x.y": 1}}}, {"q": key(2), "u": SET})
    ],
    "update_errors_unordered": [
        update(
            {"q": key(1), "u": {"$inc": {"x.y": 1}}},
            {"q": key(-1), "u": {"$inc": {"x.y": 1}}},
            {"q": key(2), "u": SET},
            {"q": {"_id": -4}, "u": SET},
            ordered=False,
        )
    ],
    "update_everywhere_fails": [update({"q": {"x": 0}, "u": {"$inc": {"x.y": 1}}, "multi": True})],
    "update_immutable_id": [update({"q": key(1), "u": {"$set": {"_id": 9}}})],
    "update_wrong_modifier": [update({"q": key(1), "u": {"$foo": {"x": 1}}})],
    "update_unknown_operator": [update({"q": {**key(1), "x": {"$foo": 1}}, "u": SET})],
    "update_unknown_operator_everywhere": [update({"q": {"x": {"$foo": 1}}, "u": SET})],
    "update_malformed": [
        update({"q": key(1), "u": SET, "wrong": 1}),
        update({"q": key(1), "u": SET, "multi": 1}),
        update({"q": key(1)}),
        update({"u": SET}),
        update({"q": key(1), "u": 5}),
        update({"q": key(1), "u": SET}, ordered=1),
        update(),
    ],
    "update_again_retryable": [
        update({"q": key(1), "u": {"$inc": {"x": 1}}}, {"q": key(-1), "u": {"$inc": {"x": 1}}}, **retryable(3)),
        update({"q": key(1), "u": {"$inc": {"x": 1}}}, {"q": key(-1), "u": {"$inc": {"x": 1}}}, **retryable(3)),
    ],
    "update_multi_retryable": [update({"q": {"k": 1}, "u": SET, "multi": True}, **retryable(4))],
    "delete_by_key": [delete({"q": key(1), "limit": 1}), delete({"q": key(1), "limit": 1})],
    "delete_by_id": [delete({"q": {"_id": -3}, "limit": 1}), delete({"q": {"_id": 99}, "limit": 1})],
    "delete_many": [delete({"q": {"x": 1}, "limit": 0}), delete({"q": {"k": {"$gt": 2}}, "limit": 0})],
    "delete_all": [delete({"q": {}, "limit": 0})],
    "delete_several": [delete(*[{"q": key(n), "limit": 1} for n in (-1, 1, 9, -2, 2)])],
    "delete_several_unordered": [delete(*[{"q": key(n), "limit": 1} for n in (-1, 1, 9, -2, 2)], ordered=False)],
    "delete_errors": [
        delete({"q": key(1), "limit": 1}, {"q": {"k": -1, "$where": "throw 1"}, "limit": 0}, {"q": key(2), "limit": 1}),
        delete({"q": {"k": 3, "$where": "throw 1"}, "limit": 1}, {"q": key(2), "limit": 1}, ordered=False),
    ],
    "delete_malformed": [
        delete({"q": {}, "limit": 2}),
        delete({"q": {}}),
        delete({"q": 1, "limit": 1}),
        delete({"limit": 1}),
        delete({"q": {}, "limit": 1, "wrong": 1}),
        delete(),
    ],
    "modify": [
        modify(key(1), update=SET),
        modify(key(1), update={"$inc": {"x": 5}}, new=True, fields={"x": 1}),
        modify(key(-1), update=[{"$set": {"z": "$x"}}], new=True),
        modify(key(1), update={"$set": {"a.$[e].b": 0}}, arrayFilters=[{"e.b": 2}], new=True),
        modify({"k": 2}, sort={"x": 1}, remove=True),
        modify(key(99), update=SET),
        modify(key(99), remove=True),
        modify(key(98), update=SET, upsert=True),
        modify(key(97), update=SET, upsert=True, new=True),
    ],
    "modify_errors": [
        modify(key(1)),
        modify(key(1), update=SET, remove=True),
        modify(key(1), update={"$inc": {"x.y": 1}}),
        modify(key(1), update=SET, wrong=1),
        modify({**key(1), "x": {"$foo": 1}}, update=SET),
    ],
    "modify_again_retryable": [
        modify(key(1), update={"$inc": {"x": 1}}, new=True, **retryable(5)),
        modify(key(1), update={"$inc": {"x": 1}}, new=True, **retryable(5)),
    ],
}


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    """A client of one router, with a sharded collection whose documents are on both shards."""
    with cluster.direct("router.0", retryWrites=False) as client:
        client.admin.command("shardCollection", f"{DATABASE}.sharded", key={"k": 1})
        client.admin.command("split", f"{DATABASE}.sharded", middle={"k": 0})
        primary = client.config.databases.find_one({"_id": DATABASE})
        assert primary is not None
        other = next(shard for shard in cluster.shards if shard != primary["primary"])
        client.admin.command("moveChunk", f"{DATABASE}.sharded", bounds=[{"k": 0}, {"k": MaxKey()}], to=other)
        yield client
        client.drop_database(DATABASE)


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """A client of a mongod without sharding."""
    with cluster.direct("shard0.0.mongod", retryWrites=False) as client:
        yield client
        client.drop_database(f"plain_{DATABASE}")


def run(client: Client, database: str, collection: str, commands: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The replies to the commands of a case, and the documents stored afterwards."""
    first_transaction = next(_runs) << 8  # the driver sends each command in the same session
    target = client[database][collection]
    target.delete_many({})
    target.insert_many(STORED)
    replies = []
    for command in commands:
        name = next(iter(command))
        command = {**command, name: collection}
        if "txnNumber" in command:
            command["txnNumber"] = Int64(first_transaction + command["txnNumber"])
        try:
            reply = dict(client[database].command(command))
        except OperationFailure as error:
            reply = dict(error.details or {})
        replies.append(_comparable(reply, f"{database}.{collection}"))
    return replies, list(target.find().sort("_id"))


def _comparable(reply: dict[str, Any], namespace: str) -> dict[str, Any]:
    kept = {name: value for name, value in reply.items() if name not in _VOLATILE}
    for error in (kept, *kept.get("writeErrors", ())):
        if "errmsg" in error:
            error["errmsg"] = error["errmsg"].replace(namespace, "<namespace>")
    return kept


@pytest.mark.parametrize("collection", ["unsharded", "sharded"])
@pytest.mark.parametrize("case", CASES)
def test_router_answers_like_mongod(router: Client, plain: Client, case: str, collection: str) -> None:
    commands = CASES[case]
    expected = run(plain, f"plain_{DATABASE}", collection, commands)
    found = run(router, DATABASE, collection, commands)
    assert found == expected


@pytest.mark.parametrize("collection", ["unsharded", "sharded"])
def test_unacknowledged_write_answers_ok_and_is_executed(router: Client, collection: str) -> None:
    unacknowledged = {"writeConcern": {"w": 0}}
    replies, stored = run(
        router, DATABASE, collection, [insert(row(10), row(-10), **unacknowledged), delete({"q": key(1), "limit": 1})]
    )
    assert replies[0] == {"ok": 1.0}
    assert {document["_id"] for document in stored} >= {10, -10}


@pytest.mark.parametrize("collection", ["unsharded", "sharded"])
def test_write_concern_that_cannot_be_met(router: Client, collection: str) -> None:
    replies, _ = run(router, DATABASE, collection, [insert(row(10), row(-10), writeConcern={"w": 5, "wtimeout": 100})])
    assert replies[0]["n"] == 2
    error = replies[0]["writeConcernError"]
    assert error["code"] == (100 if collection == "unsharded" else 64)
    assert "Not enough data-bearing nodes" in error["errmsg"]


def test_write_creates_the_database(router: Client) -> None:
    database = f"{DATABASE}_new"
    try:
        assert router[database].command(insert(row(1)) | {"insert": "c"})["n"] == 1
        assert router.config.databases.count_documents({"_id": database}) == 1
    finally:
        router.drop_database(database)
