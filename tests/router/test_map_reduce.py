"""``mapReduce`` through the router, compared with a plain mongod."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson.code import Code
from bson.int64 import Int64

from tests.integration.sharded import shard_by_range
from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

DATABASES: Final = {"unsharded": "map_reduce", "sharded": "map_reduce_sharded"}
OTHER_DB: Final = "map_reduce_2"
VOLATILE: Final = ("$clusterTime", "operationTime")

MAP: Final = Code("function() { emit(this.g, this.v); }")
REDUCE: Final = Code("function(key, values) { return Array.sum(values); }")
FINALIZE: Final = Code("function(key, value) { return {key: key, total: value}; }")
STORED: Final = [{"_id": n * 10, "g": n % 5, "v": n} for n in range(100)]
"""Half of them are on each of two shards if the collection is sharded."""
OF_AN_AGGREGATION: Final = re.compile(
    r"(Error on remote shard \S+|Executor error during getMore|PlanExecutor error during aggregation) :: caused by :: "
)
"""Shards run an aggregation, whose errors say so."""

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
    "replacing in another database": {"out": {"replace": "o", "db": OTHER_DB}},
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
    "output into an internal database": {"out": {"merge": "o", "db": "admin"}},
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
    "time series": {"mapReduce": "series"},
    "output to a view": {"out": "view"},
}


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    """A client of a router, with one collection on one shard, and one sharded over both."""
    with cluster.direct("router.0") as connected:
        shard_by_range(connected[DATABASES["sharded"]], "c", key="_id")
        yield from with_documents(connected)


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """A client of a mongod without a router."""
    with cluster.direct("config.0.mongod") as connected:
        yield from with_documents(connected)


def with_documents(client: Client) -> Iterator[Client]:
    """Store the documents and a view on them in both databases; they are dropped afterwards."""
    for name in DATABASES.values():
        client[name].c.insert_many(STORED)
        client[name].command("create", "view", viewOn="c", pipeline=[])
        client[name].command("create", "series", timeseries={"timeField": "t"})
    yield client
    for name in (*DATABASES.values(), OTHER_DB):
        client.drop_database(name)


def run(client: Client, database: str, command: Command) -> tuple[Any, ...]:
    """The reply to a command, with results in the order of their keys, and the contents of the output collections."""
    db = client[database]
    outputs = [db.o, client[OTHER_DB].o, db.existing]
    for output in outputs:
        output.drop()
    db.existing.insert_many([{"_id": 0.0, "value": 1000.0}, {"_id": "other", "value": 1.0}])
    whole = {"mapReduce": "c", "map": MAP, "reduce": REDUCE, "out": INLINE} | command
    reply = db.command({name: value for name, value in whole.items() if value is not MISSING}, check=False)
    for name in VOLATILE:
        reply.pop(name, None)
    if "errmsg" in reply:
        reply["errmsg"] = OF_AN_AGGREGATION.sub("", reply["errmsg"])
    if "results" in reply:
        reply["results"].sort(key=str)
    return (reply, *(sorted(output.find(), key=str) for output in outputs))


@pytest.mark.parametrize("database", DATABASES.values(), ids=DATABASES)
@pytest.mark.parametrize("case", CASES)
def test_same_as_mongod(router: Client, plain: Client, case: str, database: str) -> None:
    assert run(router, database, CASES[case]) == run(plain, database, CASES[case])


@pytest.mark.parametrize("database", DATABASES.values(), ids=DATABASES)
def test_inline_results_have_to_fit_into_a_reply(router: Client, database: str) -> None:
    db = router[database]
    large = Code("function() { emit(this._id, new Array(400 * 1000).join('x')); }")
    refused = db.command({"mapReduce": "c", "map": large, "reduce": REDUCE, "out": INLINE}, check=False)
    assert refused["code"] == 31301
    assert refused["errmsg"] == "MapReduce inline results are greater than the allowed 16MB limit"
    kept = db.command({"mapReduce": "c", "map": large, "reduce": REDUCE, "out": "o"})
    assert kept["result"] == "o"
    assert db.o.count_documents({}) == len(STORED)


def explained(client: Client, database: str, command: Command) -> Any:  # noqa: ANN401 - a part of a reply
    """Return the error of an explanation, or its part about the command."""
    whole = {"mapReduce": "c", "map": MAP, "reduce": REDUCE, "out": INLINE} | command
    whole = {name: value for name, value in whole.items() if value is not MISSING}
    reply = client[database].command({"explain": whole, "verbosity": "queryPlanner"}, check=False)
    if "errmsg" in reply:
        return reply["code"], OF_AN_AGGREGATION.sub("", reply["errmsg"])
    return reply["command"]


@pytest.mark.parametrize("database", DATABASES.values(), ids=DATABASES)
@pytest.mark.parametrize("case", ["query, sort and limit", "reducing", "no map", "limit 0", "view", "time series"])
def test_explained_as_by_mongod(router: Client, plain: Client, case: str, database: str) -> None:
    command = CASES[case]
    assert explained(router, database, command) == explained(plain, database, command)


def test_explanation_is_that_of_an_aggregation(router: Client, cluster: RunningCluster) -> None:
    explain = {
        "explain": {"mapreduce": "c", "map": MAP, "reduce": REDUCE, "finalize": FINALIZE, "out": "explained"},
        "verbosity": "executionStats",
    }
    (shard,) = router[DATABASES["unsharded"]].command(explain)["shards"].values()
    assert [next(iter(stage)) for stage in shard["stages"]] == ["$cursor", "$unwind", "$group", "$project", "$out"]
    split = router[DATABASES["sharded"]].command(explain)
    assert split["shards"].keys() == cluster.shards.keys()
    assert [next(iter(stage)) for stage in split["splitPipeline"]["mergerPart"]][-2:] == ["$project", "$out"]
    for name in DATABASES.values():
        assert "explained" not in router[name].list_collection_names()
