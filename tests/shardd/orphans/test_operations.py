"""Operations on a shard with orphans have the same results as without them, on real mongods."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from bson import Int64, MinKey
from pymongo import MongoClient

from tests.shardd.mini_cluster import MiniCluster, mini_cluster
from tests.shardd.orphans.world import World, make_world
from tests.shardd.router_stand_in import ShardedNamespace

FRENCH = {"locale": "fr", "strength": 1}
TEXTS = ("", "a", "A", "b", "B", "e", "é", "É", "ee", "f\0g", "z", "Zz")


def _document(number: int, **key: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a document may hold
    return {
        "_id": number,
        **key,
        "n": number,
        "kind": number % 3,
        "list": [{"x": number}, {"x": number + 1}],
        "words": f"common w{number}",
        "place": [number, 0],
    }


def _ranged(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    sharded = ShardedNamespace(mini, "ranged.c", {"a": 1}, "sh0")
    sharded.split([{"a": 0}, {"a": 10}])
    documents = [_document(number, a=number - 10) for number in range(30)]
    documents += [_document(100), _document(101, a=None), _document(102, a="text"), _document(103, a=5.5)]
    documents += [_document(104, a={"x": 1}), _document(105, a=True), _document(106, a=Int64(3))]
    return make_world(mini, mongod, sharded, documents, ({"a": 0}, {"a": 10}))


def _lowest(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    """Null and missing keys are orphans."""
    sharded = ShardedNamespace(mini, "lowest.c", {"a": 1}, "sh0")
    sharded.split([{"a": 0}])
    documents = [_document(number, a=number - 10) for number in range(20)]
    documents += [_document(100), _document(101, a=None), _document(102, a="text"), _document(103, a=MinKey())]
    return make_world(mini, mongod, sharded, documents, ({"a": MinKey()}, {"a": 0}))


def _compound(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    sharded = ShardedNamespace(mini, "compound.c", {"a": 1, "b": 1}, "sh0")
    bounds = {"a": 1, "b": 2}, {"a": 3, "b": MinKey()}
    sharded.split(bounds)
    documents = [_document(10 * a + b, a=a, b=b) for a in range(5) for b in range(5)]
    documents += [_document(100, a=1), _document(101, a=2), _document(102, b=2), _document(103, a=1, b="text")]
    return make_world(mini, mongod, sharded, documents, bounds)


def _dotted(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    sharded = ShardedNamespace(mini, "dotted.c", {"a.b": 1}, "sh0")
    bounds = {"a.b": None}, {"a.b": 10}
    sharded.split(bounds)
    documents = [_document(number, a={"b": number}) for number in range(20)]
    documents += [_document(100), _document(101, a=3), _document(102, a={"c": 3}), _document(103, a={"b": "text"})]
    return make_world(mini, mongod, sharded, documents, bounds)


def _hashed(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    sharded = ShardedNamespace(mini, "hashed.c", {"a": "hashed"}, "sh0")
    documents = [_document(number, a=number) for number in range(60)]
    documents += [_document(100), _document(101, a=None), _document(102, a="text"), _document(103, a={"x": 1})]
    return make_world(mini, mongod, sharded, documents)


def _collated(mini: MiniCluster, mongod: MongoClient[dict[str, Any]]) -> World:
    """The collection's default collation considers letters equal that the shard key distinguishes."""
    mini.create_database("collated", "sh0")
    mongod["collated"].create_collection("c", collation=FRENCH)
    mongod["collated"]["c"].create_index("a", collation={"locale": "simple"})
    sharded = ShardedNamespace(mini, "collated.c", {"a": 1}, "sh0", collation={"locale": "simple"})
    bounds = {"a": "a"}, {"a": "f\0"}
    sharded.split(bounds)
    documents = [_document(number, a=text) for number, text in enumerate(TEXTS)]
    documents += [_document(100), _document(101, a=7), _document(102, a={"b": "a"})]
    return make_world(mini, mongod, sharded, documents, bounds)


_KINDS: Mapping[str, Callable[[MiniCluster, MongoClient[dict[str, Any]]], World]] = {
    "ranged": _ranged,
    "lowest": _lowest,
    "compound": _compound,
    "dotted": _dotted,
    "hashed": _hashed,
    "collated": _collated,
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """A world of each kind."""
    with (
        mini_cluster(tmp_path_factory.mktemp("orphans")) as mini,
        mini.shards["sh0"].members[0].mongod_client() as mongod,
    ):
        worlds = {name: make(mini, mongod) for name, make in _KINDS.items()}
        for each in worlds.values():
            for collection in (each.stored, each.plain):
                for key in ([("words", "text")], [("place", "2d")], [("n", 1)]):
                    collection.create_index(key, collation={"locale": "simple"})
        yield worlds


@pytest.fixture(params=_KINDS)
def world(worlds: dict[str, World], request: pytest.FixtureRequest) -> World:
    """One of them, reset."""
    found = worlds[request.param]
    found.reset()
    assert found.orphans
    assert len(found.orphans) < len(found.documents)
    return found


BY_ID = {"sort": {"_id": 1}}
NEAR = {"$geoNear": {"near": [0, 0], "distanceField": "d"}}
READS: Mapping[str, Mapping[str, Any]] = {
    "find": {"find": "c", **BY_ID},
    "find, filter": {"find": "c", "filter": {"n": {"$gte": 3}}, **BY_ID},
    "find, own $expr": {"find": "c", "filter": {"$expr": {"$gt": ["$n", 4]}}, **BY_ID},
    "find, let": {"find": "c", "filter": {"$expr": {"$gt": ["$n", "$$low"]}}, "let": {"low": 4}, **BY_ID},
    "find, skip and limit": {"find": "c", **BY_ID, "skip": 3, "limit": 5},
    "find, hint": {"find": "c", "hint": {"n": 1}},
    "find, hint, min and max": {"find": "c", "hint": {"n": 1}, "min": {"n": 2}, "max": {"n": 15}},
    "find, descending": {"find": "c", "sort": {"n": -1}},
    "find, projection": {"find": "c", "projection": {"_id": 1}, **BY_ID},
    "find, positional": {"find": "c", "filter": {"list.x": {"$gte": 4}}, "projection": {"list.$": 1}, **BY_ID},
    "find, $elemMatch": {"find": "c", "filter": {"list": {"$elemMatch": {"x": 4}}}, **BY_ID},
    "find, $near": {"find": "c", "filter": {"place": {"$near": [0, 0]}}, "limit": 7},
    "find, $text": {
        "find": "c",
        "filter": {"$text": {"$search": "common"}},
        "projection": {"score": {"$meta": "textScore"}},
        **BY_ID,
    },
    "find, collation": {"find": "c", "filter": {"words": {"$gt": "COMMON"}}, "collation": FRENCH, **BY_ID},
    "find, simple collation": {"find": "c", "collation": {"locale": "simple"}, **BY_ID},
    "find, malformed": {"find": "c", "filter": {"$nothing": 1}},
    "count": {"count": "c"},
    "count, null": {"count": "c", "query": None},
    "count, query": {"count": "c", "query": {"kind": 1}},
    "count, limit": {"count": "c", "query": {}, "limit": 4, "skip": 1},
    "distinct": {"distinct": "c", "key": "n"},
    "distinct, null": {"distinct": "c", "key": "n", "query": None},
    "distinct, key": {"distinct": "c", "key": "a", "query": {"n": {"$gte": 0}}},
    "distinct, query": {"distinct": "c", "key": "list.x", "query": {"kind": 2}},
    "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
    "aggregate, $match": {"aggregate": "c", "pipeline": [{"$match": {"kind": 1}}, {"$sort": {"_id": 1}}], "cursor": {}},
    "aggregate, $group": {
        "aggregate": "c",
        "pipeline": [{"$group": {"_id": "$kind", "n": {"$sum": "$n"}}}, {"$sort": {"_id": 1}}],
        "cursor": {},
    },
    "aggregate, $count": {"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}},
    "aggregate, $text": {
        "aggregate": "c",
        "pipeline": [{"$match": {"$text": {"$search": "common"}}}, {"$sort": {"_id": 1}}],
        "cursor": {},
    },
    "aggregate, $geoNear": {"aggregate": "c", "pipeline": [NEAR, {"$limit": 5}], "cursor": {}},
    "aggregate, $geoNear with query": {
        "aggregate": "c",
        "pipeline": [{"$geoNear": {**NEAR["$geoNear"], "query": {"kind": 1}}}, {"$limit": 5}],
        "cursor": {},
    },
    "aggregate, $sample": {
        "aggregate": "c",
        "pipeline": [{"$sample": {"size": 1000}}, {"$sort": {"_id": 1}}],
        "cursor": {},
    },
    "aggregate, $facet": {
        "aggregate": "c",
        "pipeline": [{"$facet": {"a": [{"$count": "n"}], "b": [{"$group": {"_id": None, "s": {"$sum": "$n"}}}]}}],
        "cursor": {},
    },
    "aggregate, collation": {
        "aggregate": "c",
        "pipeline": [{"$group": {"_id": "$a"}}, {"$count": "n"}],
        "collation": FRENCH,
        "cursor": {},
    },
}


@pytest.mark.parametrize("name", READS)
def test_reads(world: World, name: str) -> None:
    found, expected = world.run(READS[name])
    assert found == expected


def _updates(query: Mapping[str, Any], update: object, **options: object) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": query, "u": update, "multi": True, **options}]}


WRITES: Mapping[str, Mapping[str, Any]] = {
    "update all": _updates({}, {"$inc": {"n": 1000}}),
    "update some": _updates({"kind": 1}, {"$set": {"seen": True}}),
    "update, pipeline": _updates({}, [{"$set": {"twice": {"$multiply": ["$n", 2]}}}]),
    "update, positional": _updates({"list.x": 4}, {"$set": {"list.$.y": 1}}),
    "update, all positions": _updates({}, {"$set": {"list.$[].y": 1}}),
    "update, arrayFilters": _updates({}, {"$set": {"list.$[e].y": 1}}, arrayFilters=[{"e.x": {"$gt": 4}}]),
    "update, collation": _updates({"words": {"$gte": "COMMON"}}, {"$set": {"seen": 1}}, collation=FRENCH),
    "update, hint": _updates({"n": {"$gt": 4}}, {"$set": {"seen": 1}}, hint={"n": 1}),
    "update, let": {**_updates({"$expr": {"$gt": ["$n", "$$low"]}}, {"$set": {"seen": 1}}), "let": {"low": 4}},
    "update one, by _id of an orphan or not": {
        "update": "c",
        "updates": [{"q": {"_id": number}, "u": {"$set": {"seen": 1}}} for number in range(12)],
    },
    "update several": {
        "update": "c",
        "updates": [
            {"q": {"kind": 0}, "u": {"$set": {"seen": 0}}, "multi": True},
            {"q": {"$nothing": 0}, "u": {"$set": {"seen": 0}}, "multi": True},
            {"q": {"kind": 2}, "u": {"$set": {"seen": 2}}, "multi": True},
        ],
        "ordered": False,
    },
    "delete all": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    "delete some": {"delete": "c", "deletes": [{"q": {"kind": 1}, "limit": 0}, {"q": {"n": 2}, "limit": 0}]},
    "delete one by _id": {"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1} for number in range(12)]},
    "delete, collation": {
        "delete": "c",
        "deletes": [{"q": {"a": {"$gte": "a", "$lt": "f"}}, "limit": 0, "collation": FRENCH}],
    },
    "findAndModify": {"findAndModify": "c", "query": {"n": {"$gt": 3}}, "sort": {"n": 1}, "update": {"$set": {"s": 1}}},
    "findAndModify, all": {"findAndModify": "c", "sort": {"n": -1}, "update": {"$set": {"seen": 1}}, "new": True},
    "findAndModify, remove": {"findAndModify": "c", "query": {"kind": 1}, "sort": {"n": 1}, "remove": True},
    "findAndModify, positional": {
        "findAndModify": "c",
        "query": {"list.x": {"$gte": 4}},
        "sort": {"n": 1},
        "fields": {"list.$": 1},
        "update": {"$set": {"list.$.y": 1}},
    },
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(world: World, name: str) -> None:
    found, expected = world.run(WRITES[name])
    assert found == expected
    owned, plain = world.contents()
    assert owned == plain
    assert world.stored_orphans() == world.orphans


NO_INDEX: dict[str, Any] = {"hint": "none"}
"""A hint that mongod complains about, showing the query."""

COMPLAINTS: Mapping[str, dict[str, Any]] = {
    "find": {"find": "c", "filter": {"n": 1}, **NO_INDEX},
    "find all": {"find": "c", **NO_INDEX},
    "find near": {"find": "c", "filter": {"unknown": {"$near": [0, 0]}}},
    "positional": {"find": "c", "filter": {"list.x": 1}, "projection": {"list.$": 1}, **NO_INDEX},
    "count": {"count": "c", "query": {"n": 1}, **NO_INDEX},
    "aggregate": {"aggregate": "c", "pipeline": [{"$match": {"n": 1}}], "cursor": {}, **NO_INDEX},
    "update": {"update": "c", "updates": [{"q": {"n": 1}, "u": {"$set": {"m": 1}}, **NO_INDEX}]},
    "update many": {"update": "c", "updates": [{"q": {}, "u": {"$set": {"m": 1}}, "multi": True, **NO_INDEX}]},
    "delete": {"delete": "c", "deletes": [{"q": {"n": 1}, "limit": 0, **NO_INDEX}]},
    "second of a batch": {
        "delete": "c",
        "deletes": [{"q": {"n": 1000}, "limit": 0}, {"q": {"n": 1}, "limit": 0, **NO_INDEX}],
        "ordered": False,
    },
    "findAndModify": {"findAndModify": "c", "query": {"n": 1}, "update": {"$set": {"m": 1}}, **NO_INDEX},
    "findAndModify of the key": {"findAndModify": "c", "query": {"n": 1}, "update": [{"$replaceWith": {}}], **NO_INDEX},
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_errors_show_what_the_client_sent(worlds: dict[str, World], name: str) -> None:
    world = worlds["ranged"]
    reply = world.sharded.versioned(COMPLAINTS[name])
    expected = world.stored.database.command(COMPLAINTS[name], check=False)
    (found,), (wanted,) = (each.get("writeErrors", [each]) for each in (reply, expected))
    assert wanted["errmsg"].startswith("error processing query: ns=")
    assert (found["errmsg"], found["code"]) == (wanted["errmsg"], wanted["code"])


EXPLAINED: Mapping[str, Mapping[str, Any]] = {
    **{name: READS[name] for name in ("find", "find, filter", "find, own $expr", "find, hint", "find, $text")},
    **{name: READS[name] for name in ("count, query", "distinct", "distinct, query", "aggregate", "aggregate, $match")},
    **{name: READS[name] for name in ("aggregate, $group", "aggregate, $text")},
    **{name: WRITES[name] for name in ("update all", "update some", "findAndModify", "findAndModify, remove")},
    "find, $or": {"find": "c", "filter": {"$or": [{"n": 1}, {"kind": 2}]}},
    "find, $and": {"find": "c", "filter": {"$and": [{"n": 1}, {"kind": 2}], "words": "common"}},
    "delete": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
}


def parsed_queries(shown: object) -> list[object]:
    """The parsed queries in an explanation, wherever they are."""
    if isinstance(shown, list):
        return [query for each in shown for query in parsed_queries(each)]
    if not isinstance(shown, dict):
        return []
    own = [shown["parsedQuery"]] if "parsedQuery" in shown else []
    return own + [query for each in shown.values() for query in parsed_queries(each)]


@pytest.mark.parametrize("name", EXPLAINED)
def test_explanations_show_what_the_client_sent(worlds: dict[str, World], name: str) -> None:
    for world in (worlds["ranged"], worlds["collated"]):
        explain = {"explain": EXPLAINED[name], "verbosity": "allPlansExecution"}
        reply = world.sharded.versioned(explain)
        expected = world.stored.database.command(explain)
        assert "$let" not in repr(reply)
        assert parsed_queries(reply) == parsed_queries(expected)
        assert reply["command"] == expected["command"]


def test_explained_counts_exclude_orphans(world: World) -> None:
    explain = {"explain": {"find": "c"}, "verbosity": "executionStats"}
    assert world.sharded.versioned(explain)["executionStats"]["nReturned"] == len(world.owned_ids)


def test_operations_under_way_and_cached_plans_show_what_clients_sent(worlds: dict[str, World]) -> None:
    world = worlds["ranged"]
    sent = {"n": {"$gte": 0}, "kind": {"$gte": 0}}
    world.stored.create_index("kind")
    for _ in range(2):
        opened = world.sharded.versioned({"find": "c", "filter": sent, "batchSize": 1})
    cursor_id = opened["cursor"]["id"]
    operations = [{"$currentOp": {"idleCursors": True}}, {"$match": {"cursor.cursorId": cursor_id}}]
    reply = world.sharded.run({"aggregate": 1, "pipeline": operations, "cursor": {}}, db="admin")
    (shown,) = reply["cursor"]["firstBatch"]
    assert shown["cursor"]["originatingCommand"]["filter"] == sent
    plans = world.sharded.versioned({"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}})
    assert sent in [plan["createdFromQuery"]["query"] for plan in plans["cursor"]["firstBatch"]]
    assert "$let" not in repr(plans)
