"""``explain`` has the form that MongoDB's own router code gives it.

A genuine shard server carries the code of mongos as ``clusterFind`` and ``clusterAggregate``. Each command is
explained by a shard in that form and by our router in front of the same genuine cluster.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson.regex import Regex
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.interop.sharded import Document
from tests.local_cluster import Client

VERBOSITIES = ("queryPlanner", "executionStats", "allPlansExecution")

_ABOUT_THE_SERVER = frozenset({"host", "port", "gitVersion"})
_TIMES = frozenset({"executionTimeMillis", "executionTimeMillisEstimate", "totalChildMillis"})
_OF_THE_SESSION = frozenset(
    {"lsid", "operationTime", "$clusterTime", "$configTime", "$topologyTime", "lastCommittedOpTime"}
)
_ADDED_BY_ROUTERS = frozenset({"let", "fromMongos", "readConcern"})
"""Fields that a genuine router adds to an aggregation, shown by the mongod."""

FINDS: list[Document] = [
    {"find": "ranged"},
    {"find": "ranged", "sort": {"even": 1}, "skip": 1, "limit": 2},
    {"find": "ranged", "sort": {"even": 1}, "projection": {"key": 1}},
    {"find": "ranged", "sort": {}},
    {"find": "ranged", "skip": 5},
    {"find": "ranged", "limit": 3, "batchSize": 2},
    {"find": "ranged", "filter": {"key": 1}, "sort": {"even": 1}, "skip": 1},
    {"find": "ranged", "projection": {"$sortKey": {"$meta": "sortKey"}}, "sort": {"even": 1}},
    {"find": "plain", "sort": {"_id": 1}, "skip": 1, "limit": 2},
    {"find": "view_of_plain", "filter": {"_id": {"$gt": 1}}, "sort": {"_id": 1}},
]
MATCHING: list[Document] = [{"$match": {"key": 1}}]
PIPELINES: list[tuple[str, list[Document]]] = [
    ("plain", []),
    ("plain", MATCHING),
    ("plain", [{"$sort": {"key": 1}}]),
    ("plain", [{"$unwind": "$key"}, {"$limit": 3}]),
    ("plain", [{"$out": "written"}]),
    ("plain", [{"$merge": "written"}]),
    ("missing", MATCHING),
    ("view_of_plain", MATCHING),
    ("ranged", MATCHING),
    ("ranged", [{"$addFields": {"x": 1}}]),
    ("view_of_ranged", [{"$limit": 3}]),
]


@pytest.fixture(scope="module")
def shard(genuine: GenuineCluster) -> Iterator[Client]:
    """A client of the genuine shard that is not primary for the database."""
    with genuine.direct(genuine.shards[SHARDS[1]]) as connected:
        yield connected


@pytest.fixture
def filled(database: Database[Document]) -> Database[Document]:
    """``ranged`` on both shards, ``plain`` on the first, and a view of each."""
    namespace, admin = f"{database.name}.ranged", database.client.admin
    admin.command("shardCollection", namespace, key={"key": 1})
    admin.command("split", namespace, middle={"key": 50})
    admin.command("moveChunk", namespace, find={"key": 50}, to=SHARDS[1])
    database.ranged.insert_many([{"_id": n, "key": n, "even": n % 2 == 0} for n in range(100)])
    database.plain.insert_many([{"_id": n, "key": n} for n in range(5)])
    for name in ("plain", "ranged"):
        database.create_collection(f"view_of_{name}", viewOn=name, pipeline=[{"$match": {"_id": {"$gte": 0}}}])
    return database


def as_mongos(command: Document) -> Document:
    """The name under which a shard server runs a command as mongos does."""
    name = next(iter(command))
    return {f"cluster{name[0].upper()}{name[1:]}": command[name], **{k: v for k, v in command.items() if k != name}}


def normal(value: Any, path: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - any part of a reply
    """A part of an explanation without what differs from run to run. The order of the fields counts."""
    if isinstance(value, dict):
        hidden = _OF_THE_SESSION | (_ADDED_BY_ROUTERS if path == ("command",) else frozenset())
        fields = [(name.removeprefix("cluster"), each) for name, each in value.items() if name not in hidden]
        if path[-1:] == ("shards",):
            fields.sort()
        return [(name.lower(), _shown(name, each, (*path, name))) for name, each in fields]
    if isinstance(value, list):
        is_by_shard = path[-1:] in (("shards",), ("allPlansExecution",))
        return sorted((normal(each, path) for each in value), key=str if is_by_shard else lambda _: 0)
    return value


def _shown(name: str, value: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - any part of a reply
    if name in _TIMES or name == "serverParameters" or (path[0] == "serverInfo" and name in _ABOUT_THE_SERVER):
        return name
    if path == ("splitPipeline", "shardsPart"):  # the genuine one is optimised
        return [next(iter(stage)) for stage in value]
    return normal(value, path)


def run(client: Client, database: str, command: Document) -> Document:
    """The reply, failed or not."""
    try:
        return dict(client[database].command(command))
    except OperationFailure as error:
        return dict(error.details or {})


def assert_same(shard: Client, ours: Client, database: str, inner: Document, verbosity: str) -> None:
    """Explain a command in both ways, and compare."""
    theirs = run(shard, database, {"explain": as_mongos(inner), "verbosity": verbosity})
    assert normal(run(ours, database, {"explain": inner, "verbosity": verbosity})) == normal(theirs)


@pytest.mark.parametrize("verbosity", VERBOSITIES)
def test_finds(shard: Client, filled: Database[Document], verbosity: str) -> None:
    """Shards explain the client's command, not the form in which the router sends a sorted find."""
    for inner in FINDS:
        assert_same(shard, filled.client, filled.name, inner, verbosity)


def test_errors(shard: Client, filled: Database[Document]) -> None:
    """The router finds errors in the query of a sharded collection, a shard all others, which names the shard."""
    for name in ("plain", "ranged"):
        for wrong in (
            {"filter": {"$nope": 1}},
            {"filter": {"key": 1, "even": {"$nope": 1}}},
            {"filter": {"key": 1}, "hint": "nope"},
            {"sort": {"key": 5}},
            {"projection": {"key": {"$nope": 1}}},
            {"collation": {"locale": "nope"}},
            {"filter": {"$text": {"$search": "x"}}},
        ):
            inner = {"find": name, **wrong}
            theirs = run(shard, filled.name, {"explain": as_mongos(inner)})
            ours = run(filled.client, filled.name, {"explain": inner})
            # Of several shards, a genuine router names the one that answers first.
            first, second = (re.sub("on shard sh[01]", "on shard", each["errmsg"]) for each in (ours, theirs))
            assert (ours["code"], first) == (theirs["code"], second), inner


WRONG_WRITES: list[Document] = [
    {"update": "ranged", "updates": [{"q": {"even": True}, "u": {"$set": {"x": 1}}, "upsert": True}]},
    {"update": "ranged", "updates": [{"q": {"even": True}, "u": {"$set": {"x": 1}}}]},
    {"update": "ranged", "updates": [{"q": {"key": 1}, "u": {"x": 1, "$set": {"x": 1}}}]},
    {"update": "ranged", "updates": [{"q": {"key": 1}, "u": {"key": 1, "x": 1}, "multi": True}]},
    {"delete": "ranged", "deletes": [{"q": {"even": True}, "limit": 1}]},
    {"delete": "ranged", "deletes": [{"q": {"key": {"$gt": 60}}, "limit": 1}]},
]


@pytest.mark.parametrize("inner", WRONG_WRITES, ids=str)
def test_writes_that_go_nowhere(shard: Client, filled: Database[Document], inner: Document) -> None:
    assert_same(shard, filled.client, filled.name, inner, "queryPlanner")


@pytest.mark.parametrize("verbosity", VERBOSITIES)
def test_aggregations(shard: Client, filled: Database[Document], verbosity: str) -> None:
    """Of an unsharded collection, the reply is the mongod's; only a pipeline that writes is shown with its shard."""
    for name, pipeline in PIPELINES:
        inner = {"aggregate": name, "pipeline": pipeline, "cursor": {}}
        assert_same(shard, filled.client, filled.name, inner, verbosity)


def test_the_option_of_an_aggregation(shard: Client, filled: Database[Document]) -> None:
    for name, pipeline in PIPELINES:
        command = {"aggregate": name, "pipeline": pipeline, "explain": True}
        theirs = run(shard, filled.name, as_mongos({**command, "cursor": {}}))
        assert normal(run(filled.client, filled.name, command)) == normal(theirs)


def test_a_database_that_does_not_exist(shard: Client, filled: Database[Document]) -> None:
    missing = f"{filled.name}_missing"
    for command in ({"aggregate": "c", "pipeline": MATCHING, "cursor": {}, "explain": True},):
        theirs = run(shard, missing, as_mongos(command))
        assert theirs["cursor"]["firstBatch"] == []
        assert normal(run(filled.client, missing, command)) == normal(theirs)
    for inner in ({"aggregate": "c", "pipeline": MATCHING, "cursor": {}}, {"find": "c"}):
        assert_same(shard, filled.client, missing, inner, "executionStats")


SIMPLE: Final[Document] = {"locale": "simple"}
CASELESS: Final[Document] = {"locale": "en", "strength": 2}
WORDS: Final[list[Document]] = [
    *({"word": value} for value in (5, None, "a", {"a": "x"}, {"a": 1}, {"$gt": 1}, {"$gt": "a"}, {"$in": [1, 2]})),
    {"word": {"$in": [1, "a"]}},
    {"$and": [{"word": 5}, {"word": "a"}]},
    {"$or": [{"word": 5}, {"word": "a"}]},
    {"_id": 1, "word": "a"},
    {"_id": "a", "word": 5},
    {"_id": "a"},
    {"other": "a"},
    *({"word": {"$type": types}} for types in ("int", "number", "string", ["null", 16], "array", "object", -1)),
    *({"word": {"$regex": expression}} for expression in ("^a", "a", r"\Aa", "^a|b")),
    *({"word": {"$in": [Regex("^a"), value]}} for value in (5, "a")),
    {"word": Regex("^a", "i")},
    {"word": {"$mod": [2, 1]}},
    *({"$expr": {name: ["$word", 5]}} for name in ("$eq", "$gt", "$gte", "$lt", "$lte", "$ne")),
    *({"$expr": {name: [5, "$word"]}} for name in ("$eq", "$gt", "$lt")),
    *({"$expr": {name: ["$word", "a"]}} for name in ("$eq", "$gt", "$lt")),
    *({"$expr": {name: ["$word", None]}} for name in ("$eq", "$gt", "$gte", "$lt", "$lte")),
    {"$expr": {"$eq": ["$word", {"$literal": {"a": 1}}]}},
    {"$expr": {"$eq": ["$word", "$other"]}},
    {"$expr": {"$and": [{"$eq": ["$word", 5]}, {"$ne": ["$other", 1]}]}},
    {"$expr": {"$or": [{"$eq": ["$word", 5]}, {"$lt": ["$word", 3]}]}},
    {"$expr": {"$or": [{"$eq": ["$word", 5]}, {"$ne": ["$other", 1]}]}},
    {"$expr": {"$in": ["$word", [5]]}},
]


def targets(reply: Document) -> object:
    """The shards that have explained a command; the error if it failed."""
    if not reply["ok"]:
        return reply["code"], reply["errmsg"]
    by_shard = reply.get("shards")
    return sorted(by_shard or (each["shardName"] for each in reply["queryPlanner"]["winningPlan"]["shards"]))


def written(reply: Document) -> object:
    """The numbers and errors in the reply to a write."""
    errors = [{**each, "errmsg": each["errmsg"].replace("cluster", "")} for each in reply.get("writeErrors", ())]
    return reply.get("n"), reply.get("nModified"), errors, reply.get("code"), reply.get("errmsg")


@pytest.mark.parametrize("default", [SIMPLE, CASELESS], ids=str)
def test_targets_under_collations(shard: Client, filled: Database[Document], default: Document) -> None:
    """A shard key has the simple collation, whatever the collection's default collation is."""
    namespace, admin = f"{filled.name}.words", filled.client.admin
    filled.create_collection("words", collation=default)
    filled.words.create_index("word", collation=SIMPLE)
    admin.command("shardCollection", namespace, key={"word": 1}, collation=SIMPLE)
    admin.command("split", namespace, middle={"word": ""})  # all strings are on one shard
    admin.command("moveChunk", namespace, find={"word": ""}, to=SHARDS[1])
    found = []
    for collation in (None, SIMPLE, CASELESS, {"locale": "fr"}):
        more: Document = {} if collation is None else {"collation": collation}
        for query in WORDS:
            for read in (
                {"find": "words", "filter": query, **more},
                {"aggregate": "words", "pipeline": [{"$match": query}], "cursor": {}, **more},
            ):
                theirs = targets(run(shard, filled.name, {"explain": as_mongos(read)}))
                ours = targets(run(filled.client, filled.name, {"explain": read}))
                found += [] if ours == theirs else [(read, theirs, ours)]
            for write in (
                {"update": "words", "updates": [{"q": query, "u": {"$set": {"n": 1}}, **more}]},
                {"update": "words", "updates": [{"q": query, "u": {"$set": {"n": 1}}, "multi": True, **more}]},
                {"update": "words", "updates": [{"q": query, "u": {"n": 1}, **more}]},
                {"delete": "words", "deletes": [{"q": query, "limit": 1, **more}]},
                {"delete": "words", "deletes": [{"q": query, "limit": 0, **more}]},
            ):
                theirs = written(run(shard, filled.name, as_mongos(write)))
                ours = written(run(filled.client, filled.name, write))
                found += [] if ours == theirs else [(write, theirs, ours)]
    assert found == []
