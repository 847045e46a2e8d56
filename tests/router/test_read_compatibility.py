"""The same reads give the same replies on the router and on a plain mongod.

Each command of the table runs on a collection of a plain mongod and, under the same name, on three of the cluster:
one sharded by range over two shards, one hashed, and one that is not sharded. Replies are compared field by field and
in the order of their fields; where MongoDB promises no order of documents, their order is ignored.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import bson
import pytest
from bson.decimal128 import Decimal128
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster

DB = "read_compatibility"
LAYOUTS = ("ranged", "hashed", "unsharded")
DOCUMENT_COUNT = 240

VALUES = [
    5,
    2.5,
    "text",
    None,
    True,
    bson.Int64(7),
    Decimal128("2.5"),
    {"x": 1},
    datetime(2024, 1, 1, tzinfo=UTC),
    "Text",
]


def documents() -> list[dict[str, Any]]:
    """Documents with values of many types in ``v``, a unique ``k``, and few different values in ``g`` and ``s``."""
    return [
        {
            "_id": number,
            "k": number,
            "g": number % 7,
            "s": ("alpha", "Beta", "beta", "gamma", "ALPHA")[number % 5],
            "v": VALUES[number % len(VALUES)],
            "tags": [number % 3, number % 4],
            "p": [number % 20, number % 13],
        }
        for number in range(DOCUMENT_COUNT)
    ]


class Case(NamedTuple):
    """One command, and how its reply is compared.

    Attributes:
        command: the command without its first field, the collection.
        is_ordered: the order of documents or values is promised.
        is_counted: only the number of documents is promised.
    """

    name: str
    command: dict[str, Any]
    is_ordered: bool = True
    is_counted: bool = False


def find(is_ordered: bool = False, is_counted: bool = False, **arguments: Any) -> Case:  # noqa: ANN401
    return Case("find", arguments, is_ordered, is_counted)


def count(**arguments: Any) -> Case:  # noqa: ANN401
    return Case("count", arguments)


def distinct(**arguments: Any) -> Case:  # noqa: ANN401
    return Case("distinct", arguments, is_ordered=False)


def aggregate(*stages: dict[str, Any], is_ordered: bool = False, **arguments: Any) -> Case:  # noqa: ANN401
    return Case("aggregate", {"pipeline": list(stages), "cursor": {}, **arguments}, is_ordered)


EVERYTHING = 1_000
EN2 = {"locale": "en", "strength": 2}

CASES = [
    # filters
    find(batchSize=EVERYTHING),
    find(filter={"k": 17}),
    find(filter={"k": {"$in": [1, 150, 200, 999]}}),
    find(filter={"k": {"$gte": 90, "$lt": 130}}),
    find(filter={"_id": 5}),
    find(filter={"g": 3}, batchSize=EVERYTHING),
    find(filter={"v": None}, batchSize=EVERYTHING),
    find(filter={"v": 2.5}, batchSize=EVERYTHING),
    find(filter={"$or": [{"k": 3}, {"k": 203}]}),
    find(filter={"k": -1}),
    find(filter={"tags": {"$all": [1, 2]}}, batchSize=EVERYTHING),
    find(filter={"s": "BETA"}, collation=EN2, batchSize=EVERYTHING),
    find(filter={"$expr": {"$eq": ["$g", "$$wanted"]}}, let={"wanted": 4}, batchSize=EVERYTHING),
    # sort, skip, limit, batches
    find(True, sort={"k": 1}),
    find(True, sort={"k": -1}, limit=10),
    find(True, sort={"k": 1}, skip=95, limit=20),
    find(True, sort={"k": 1}, skip=235),
    find(True, sort={"k": 1}, skip=500),
    find(True, sort={"g": 1, "k": -1}, batchSize=50),
    find(True, sort={"s": -1, "k": 1}, limit=60),
    find(True, sort={"s": 1, "k": 1}, collation=EN2, limit=200),
    find(True, sort={"v": 1, "k": 1}, batchSize=EVERYTHING),
    find(True, sort={"v": -1, "k": 1}, batchSize=EVERYTHING),
    find(True, sort={"tags": 1, "k": 1}, limit=30),
    find(True, sort={"missing": 1, "k": 1}, limit=5),
    find(True, sort={"k": 1}, limit=bson.Int64(3), skip=2.0),
    find(True, sort={"k": 1}, limit=Decimal128("4")),
    find(True, sort={"k": 1}, batchSize=0),
    find(True, sort={"k": 1}, batchSize=3, singleBatch=True),
    find(True, sort={"k": 1}, limit=5, batchSize=2),
    find(True, sort={"k": 1}, limit=5, batchSize=5),
    find(True, sort={"k": 1}, limit=5, batchSize=20),
    find(is_counted=True, skip=10, limit=20),
    find(is_counted=True, limit=150),
    find(is_counted=True, limit=150, batchSize=120),
    find(is_counted=True, skip=230),
    find(is_counted=True, sort={"$natural": 1}, limit=7),
    # projections and the like
    find(True, sort={"k": 1}, projection={"g": 1}, limit=5),
    find(True, sort={"k": 1}, projection={"_id": 0, "g": 0, "v": 0}, limit=5),
    find(True, sort={"g": 1, "k": 1}, projection={"_id": 0, "s": 1}, limit=5),
    find(True, sort={"k": 1}, projection={"tags": {"$slice": 1}, "twice": {"$multiply": ["$k", 2]}}, limit=5),
    find(True, sort={"k": 1}, projection={}, limit=3),
    find(True, sort={"k": 1}, hint={"k": 1}, min={"k": 98}, max={"k": 103}),
    find(True, sort={"k": 1}, hint="k_1", returnKey=True, limit=3),
    find(True, sort={"k": 1}, comment={"why": "because"}, maxTimeMS=60_000, limit=1),
    find(True, sort={"k": 1}, allowPartialResults=True, noCursorTimeout=False, limit=1),
    find(
        True,
        filter={"p": {"$near": [3.2, 3.1], "$maxDistance": 1}},
        projection={"p": 1, "_id": 0},
        batchSize=EVERYTHING,
    ),
    # errors of find
    find(skip=-1),
    find(limit=-1),
    find(batchSize=-1),
    find(limit="x"),
    find(skip="x"),
    find(batchSize=[]),
    find(limit=True),
    find(singleBatch=1),
    find(singleBatch=None),
    find(allowPartialResults=5),
    find(noCursorTimeout="x"),
    find(filter=3),
    find(filter={"$foo": 1}),
    find(filter={"a": {"$foo": 1}}),
    find(sort=3),
    find(sort={"a": "x"}),
    find(sort={"a": 5}),
    find(sort={"$natural": 1, "a": 1}),
    find(sort={"a": {"$meta": "sortKey"}}),
    find(sort={"k": 1}, tailable=True),
    find(tailable=True, filter={}),
    find(awaitData=True),
    find(foo=1),
    find(maxTimeMS=-1),
    find(maxTimeMS="a"),
    find(hint="no_such_index"),
    find(min={"k": 1}),
    find(projection={"a": 1, "b": 0}),
    find(collation={"locale": "xx"}),
    find(collation={}, batchSize=EVERYTHING),
    find(filter={"$where": 3}),
    find(filter={"$text": {"$search": "x"}}),
    # count
    count(),
    count(query={}),
    count(query=None),
    count(query={"k": 5}),
    count(query={"g": 5}),
    count(query={"k": {"$gt": 50, "$lt": 180}}, skip=20, limit=30),
    count(limit=10),
    count(limit=-10),
    count(skip=5),
    count(skip=500),
    count(skip=230, limit=50),
    count(limit=0, skip=0),
    count(limit=10.0),
    count(query={"s": "beta"}, collation=EN2),
    count(query={"g": 1}, hint={"k": 1}),
    count(fields={"a": 1}),
    count(skip=-5),
    count(skip="x"),
    count(limit="x"),
    count(limit=None),
    count(limit=3.5),
    count(limit=bson.Int64(-(1 << 63))),
    count(query=3),
    count(query={"$foo": 1}),
    count(foo=1),
    count(hint={"zz": 1}),
    # distinct
    distinct(key="g"),
    distinct(key="s"),
    distinct(key="s", collation=EN2, query={"k": {"$lt": 3}}),
    distinct(key="v"),
    distinct(key="tags"),
    distinct(key="v.x"),
    distinct(key="missing"),
    distinct(key="g", query={"k": {"$gt": 150}}),
    distinct(key="g", query={"k": 7}),
    distinct(key="g", query=None),
    distinct(),
    distinct(key=1),
    distinct(key=""),
    distinct(key="$a"),
    distinct(key="a\0b"),
    distinct(key="g", query=3),
    distinct(key="g", query={"$foo": 1}),
    distinct(key="g", foo=1),
    # aggregate
    aggregate({"$match": {"g": 2}}, {"$group": {"_id": 1, "n": {"$sum": 1}}}),
    aggregate({"$match": {"g": 99}}, {"$group": {"_id": 1, "n": {"$sum": 1}}}),
    aggregate({"$match": {}}, {"$skip": 200}, {"$limit": 30}, {"$group": {"_id": 1, "n": {"$sum": 1}}}),
    aggregate({"$match": {}}, {"$count": "how_many"}),
    aggregate({"$match": {"k": {"$gt": 195}}}, {"$project": {"g": 1}}),
    aggregate({"$match": {"g": 2}}, {"$sort": {"k": -1}}, {"$skip": 1}, {"$limit": 5}, is_ordered=True),
    aggregate({"$sort": {"v": 1, "k": 1}}, {"$limit": 50}, {"$project": {"v": 1, "_id": 0}}, is_ordered=True),
    aggregate({"$match": {"k": 8}}, {"$unwind": "$tags"}, {"$group": {"_id": "$tags"}}),
    aggregate({"$match": {"k": 8}}, {"$facet": {"n": [{"$count": "n"}]}}),
    aggregate({"$match": {"g": 2}}, cursor={"batchSize": -1}),
    aggregate({"$match": {"g": 2}}, cursor=3),
    aggregate({"$match": {"$foo": 2}}),
    aggregate({"$match": {}, "$sort": {}}),
    aggregate({"$match": {}}, foo=1),
]


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """The plain mongod: the config server's, where the cluster has no such database."""
    with cluster.direct("config.0.mongod") as connected:
        for layout in LAYOUTS:
            _fill(connected, layout)
        yield connected
        connected.drop_database(DB)


@pytest.fixture(scope="module")
def routed(cluster: RunningCluster) -> Iterator[Client]:
    """The cluster with the three collections."""
    with cluster.client() as connected:
        first, second = sorted(cluster.shards)
        admin = connected.admin
        admin.command({"enableSharding": DB, "primaryShard": first})
        admin.command({"shardCollection": f"{DB}.ranged", "key": {"k": 1}})
        admin.command({"split": f"{DB}.ranged", "middle": {"k": 100}})
        admin.command({"split": f"{DB}.ranged", "middle": {"k": 170}})
        admin.command({"moveRange": f"{DB}.ranged", "min": {"k": 100}, "max": {"k": 170}, "toShard": second})
        admin.command({"shardCollection": f"{DB}.hashed", "key": {"k": "hashed"}})
        for layout in LAYOUTS:
            _fill(connected, layout)
        yield connected
        connected.drop_database(DB)


def _fill(client: Client, layout: str) -> None:
    collection = client[DB][layout]
    collection.create_index({"k": 1})
    collection.create_index({"p": "2d"})
    collection.insert_many(documents())


def run(client: Client, layout: str, case: Case) -> dict[str, Any]:
    """Return the client's view of a command's reply, or of its error."""
    command = {case.name: layout, **case.command}
    try:
        reply: dict[str, Any] = client[DB].command(command)
    except OperationFailure as error:
        details = dict(error.details or {})
        return {"code": details["code"], "codeName": details["codeName"], "errmsg": details["errmsg"]}
    for name in ("operationTime", "$clusterTime", "shards"):
        reply.pop(name, None)
    cursor = reply.get("cursor")
    if cursor is not None:
        cursor["is_open"] = bool(cursor.pop("id"))
        if case.is_counted:
            cursor["firstBatch"] = len(cursor["firstBatch"])
        elif not case.is_ordered:
            cursor["firstBatch"].sort(key=str)
    if "values" in reply:  # any of several equal numbers may be returned
        reply["values"] = sorted(
            (float(value.to_decimal()) if isinstance(value, Decimal128) else value for value in reply["values"]),
            key=str,
        )
    return reply


def _id_of(case: Case) -> str:
    return f"{case.name}-{case.command}"[:90]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=_id_of)
def test_the_router_answers_as_a_plain_mongod(plain: Client, routed: Client, layout: str, case: Case) -> None:
    expected = run(plain, layout, case)
    found = run(routed, layout, case)
    assert found == expected
    assert _field_order(found) == _field_order(expected)


def _field_order(reply: dict[str, Any]) -> list[Any]:
    return [
        (name, _field_order(value) if name == "cursor" else None) for name, value in reply.items() if name != "is_open"
    ]
