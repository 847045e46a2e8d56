"""``mapReduce`` through the router, compared with a plain mongod."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson.code import Code
from bson.int64 import Int64
from pymongo import MongoClient

from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

DB: Final = "map_reduce"
COLLECTIONS: Final = ("c", "o", "existing", "view", "elsewhere")
VOLATILE: Final = ("$clusterTime", "operationTime")

MAP: Final = Code("function() { emit(this.g, this.v); }")
REDUCE: Final = Code("function(key, values) { return Array.sum(values); }")
FINALIZE: Final = Code("function(key, value) { return {key: key, total: value}; }")
STORED: Final = [{"_id": n, "g": n % 5, "v": n} for n in range(100)]
INLINE: Final = {"inline": 1}
MISSING: Final = object()

CASES: Final[dict[str, Command]] = {
    "inline": {},
    "finalize": {"finalize": FINALIZE},
    "query, sort and limit": {"query": {"v": {"$gte": 7}}, "sort": {"v": 1}, "limit": 20},
    "scope": {"scope": {"factor": 3}, "map": Code("function() { emit(this.g, this.v * factor); }")},
    "functions as strings": {"map": str(MAP), "reduce": str(REDUCE)},
    "several emits": {"map": Code("function() { emit(this.g, 1); emit('all', 1); }")},
    "no emits": {"map": Code("function() {}")},
    "objects as keys": {
        "map": Code("function() { emit({g: this.g}, {n: 1}); }"),
        "reduce": Code("function(key, values) { return {n: values.reduce((sum, each) => sum + each.n, 0)}; }"),
    },
    "no matches": {"query": {"v": -1}},
    "null arguments": {"query": None, "finalize": None, "scope": None},
    "collation": {"query": {"s": "A"}, "collation": {"locale": "en", "strength": 2}},
    "ignored arguments": {"jsMode": True, "verbose": True, "comment": "x", "maxTimeMS": 60_000},
    "missing collection": {"mapReduce": "missing"},
    "into a new collection": {"out": "o"},
    "replacing": {"out": {"replace": "existing"}},
    "replacing in another database": {"out": {"replace": "o", "db": f"{DB}_2"}},
    "merging": {"out": {"merge": "existing"}},
    "reducing": {"out": {"reduce": "existing"}},
    "reducing and finalizing": {
        "out": {"reduce": "existing"},
        "finalize": Code("function(key, value) { return -value; }"),
    },
    "merging into nothing": {"out": {"merge": "o", "nonAtomic": True}},
    "unsatisfiable write concern": {"out": "o", "writeConcern": {"w": 9, "wtimeout": 10}},
    # refused
    "no map": {"map": MISSING},
    "map of a wrong type": {"map": 5},
    "map with a scope": {"map": Code("function() {}", {"a": 1})},
    "no reduce": {"reduce": MISSING},
    "reduce of a wrong type": {"reduce": {}},
    "finalize of a wrong type": {"finalize": 5},
    "no out": {"out": MISSING},
    "out of a wrong type": {"out": 5},
    "out without an action": {"out": {}},
    "out with an unknown action": {"out": {"append": "o"}},
    "inline 0": {"out": {"inline": 0}},
    "inline and more": {"out": {"inline": 1, "db": "x"}},
    "output name of a wrong type": {"out": {"replace": 5}},
    "output name that is empty": {"out": {"replace": "", "db": "z"}},
    "output name with a dollar": {"out": "a$b"},
    "nonAtomic false": {"out": {"merge": "o", "nonAtomic": False}},
    "sharded false": {"out": {"merge": "o", "sharded": False}},
    "sharded output that does not exist": {"out": {"merge": "o", "sharded": True}},
    "query of a wrong type": {"query": 5},
    "query that is wrong": {"query": {"$where": "x"}},
    "sort of a wrong type": {"sort": 5},
    "sort that is wrong": {"sort": {"v": "x"}},
    "limit 0": {"limit": 0},
    "limit of a wrong type": {"limit": "x"},
    "limit that is huge": {"limit": Int64(1 << 62)},
    "scope of a wrong type": {"scope": 5},
    "unknown argument": {"foo": 1},
    "verbose of a wrong type": {"verbose": 5},
    "collation of a wrong type": {"collation": 5},
    "write concern without a write": {"writeConcern": {"w": 1}},
    "map that throws": {"map": Code("function() { throw 1; }")},
    "map that is no function": {"map": Code("function({")},
    "view": {"mapReduce": "view"},
    "output to a view": {"out": "view"},
}


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    with MongoClient[dict[str, Any]](cluster.address("router.0"), directConnection=True) as connected:
        yield connected
        for name in (DB, f"{DB}_2"):
            connected.drop_database(name)


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """A client of a mongod without a router."""
    with MongoClient[dict[str, Any]](cluster.address("config.0.mongod"), directConnection=True) as connected:
        yield connected
        for name in (DB, f"{DB}_2"):
            connected.drop_database(name)


def prepare(client: Client) -> None:
    """Store the documents, unless they are stored, and recreate the output collections."""
    db = client[DB]
    if db.c.estimated_document_count() == 0:
        db.c.insert_many(STORED)
    if "view" not in db.list_collection_names():
        db.command("create", "view", viewOn="c", pipeline=[])
    db.o.drop()
    client[f"{DB}_2"].o.drop()
    db.existing.drop()
    db.existing.insert_many([{"_id": 0.0, "value": 1000.0}, {"_id": "other", "value": 1.0}])


def run(client: Client, command: Command) -> tuple[Any, ...]:
    """The reply to a command, with results in the order of their keys, and the contents of the output collections."""
    prepare(client)
    whole = {"mapReduce": "c", "map": MAP, "reduce": REDUCE, "out": INLINE} | command
    whole = {name: value for name, value in whole.items() if value is not MISSING}
    reply = client[DB].command(whole, check=False)
    for name in VOLATILE:
        reply.pop(name, None)
    if "errmsg" in reply:
        # A shard runs an aggregation, whose errors say so.
        reply["errmsg"] = reply["errmsg"].replace("PlanExecutor error during aggregation :: caused by :: ", "")
    if "results" in reply:
        reply["results"].sort(key=str)
    outputs = [client[DB].o, client[f"{DB}_2"].o, client[DB].existing]
    return (reply, *(sorted(output.find(), key=str) for output in outputs))


@pytest.mark.parametrize("case", CASES)
def test_same_as_mongod(router: Client, plain: Client, case: str) -> None:
    assert run(router, CASES[case]) == run(plain, CASES[case])


def test_inline_results_have_to_fit_into_a_reply(router: Client) -> None:
    prepare(router)
    large = Code("function() { emit(this._id, new Array(400 * 1000).join('x')); }")
    refused = router[DB].command({"mapReduce": "c", "map": large, "reduce": REDUCE, "out": INLINE}, check=False)
    assert (refused["code"], refused["codeName"]) == (10334, "BSONObjectTooLarge")
    assert refused["errmsg"].startswith("MapReduce internal error :: caused by :: ")
    kept = router[DB].command({"mapReduce": "c", "map": large, "reduce": REDUCE, "out": "o"})
    assert kept["result"] == "o"
    assert router[DB].o.count_documents({}) == len(STORED)
