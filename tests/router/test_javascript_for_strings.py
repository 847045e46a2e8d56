"""JavaScript in each place where a command has a string: a BSON type of its own, which a mongod takes for no string.

``bson.Code`` is a ``str``, and cannot be hashed.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from bson.code import Code
from bson.int64 import Int64

from tests.integration.sharded import shard_by_range
from tests.local_cluster import Client
from tests.router.beside_mongod import Command, run

DB: Final = "javascript_for_strings"

STAGES: Final[list[Command]] = [
    {"$count": "n"},
    {"$sortByCount": "$a"},
    {"$geoNear": {"near": {"type": "Point", "coordinates": [1, 1]}, "distanceField": "d", "key": "loc"}},
    {"$lookup": {"from": "other", "localField": "k", "foreignField": "k", "as": "z"}},
    {"$lookup": {"from": "sharded", "localField": "k", "foreignField": "k", "as": "z"}},
    {"$lookup": {"from": "sharded", "pipeline": [{"$count": "n"}], "as": "z"}},
    {"$graphLookup": {"from": "sharded", "startWith": "$k", "connectFromField": "k", "connectToField": "k", "as": "z"}},
    {"$unionWith": "sharded"},
    {"$unionWith": {"coll": "sharded", "pipeline": [{"$sortByCount": "$a"}]}},
    {"$unwind": "$l"},
    {"$unwind": {"path": "$l", "includeArrayIndex": "i"}},
    {"$bucketAuto": {"groupBy": "$a", "buckets": 2, "granularity": "R5"}},
    {"$group": {"_id": "$a", "n": {"$sum": "$k"}}},
    {"$unset": "a"},
    {"$unset": ["a"]},
    {"$densify": {"field": "a", "partitionByFields": ["k"], "range": {"step": 1, "bounds": "full"}}},
    {"$fill": {"partitionByFields": ["k"], "sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}},
    {"$merge": "other"},
    {"$merge": {"into": "other", "on": "_id", "whenMatched": "merge", "whenNotMatched": "insert"}},
    {"$merge": {"into": {"db": DB, "coll": "other"}, "on": ["_id"]}},
    {"$merge": {"into": {"db": DB, "coll": "sharded"}, "whenMatched": "replace", "whenNotMatched": "insert"}},
    {"$out": "made"},
    {"$out": {"db": DB, "coll": "made"}},
    {"$facet": {"x": [{"$count": "n"}], "y": [{"$unionWith": "other"}]}},
    {"$changeStream": {"fullDocument": "updateLookup", "fullDocumentBeforeChange": "whenAvailable"}},
]

SCOPES: Final[tuple[Command | None, ...]] = (None, {})
MAP_REDUCE: Final[Command] = {"map": "function() {}", "reduce": "function() {}"}


def on(name: str) -> Iterator[Command]:
    """Commands on a collection."""
    yield from ({"aggregate": name, "pipeline": [stage], "cursor": {}} for stage in STAGES)
    yield {"aggregate": name, "pipeline": [{"$lookup": dict(STAGES[4]["$lookup"])}, STAGES[10]], "cursor": {}}
    yield {"aggregate": name, "pipeline": [], "cursor": {}, "hint": "_id_", "collation": {"locale": "en"}}
    yield {"find": name, "hint": "_id_", "readConcern": {"level": "local"}, "collation": {"locale": "en"}}
    yield {"find": name, "filter": {"t": {"$regex": "x", "$options": "i"}}, "sort": {"a": {"$meta": "textScore"}}}
    yield {"find": name, "$readPreference": {"mode": "nearest"}}
    yield {"count": name, "query": {"t": "x"}, "hint": "_id_"}
    yield {"distinct": name, "key": "a", "query": {"t": "x"}}
    yield {"explain": {"find": name, "hint": "_id_"}, "verbosity": "queryPlanner"}
    yield {"explain": {"aggregate": name, "pipeline": [{"$count": "n"}], "cursor": {}}, "verbosity": "queryPlanner"}
    yield {"explain": {"count": name}, "verbosity": "queryPlanner"}
    yield {"explain": {"distinct": name, "key": "a"}, "verbosity": "queryPlanner"}
    yield {"explain": {"update": name, "updates": [{"q": {"k": 1}, "u": {"$set": {"a": 1}}}]}}
    yield {"explain": {"delete": name, "deletes": [{"q": {"k": 1}, "limit": 1}]}}
    yield {"explain": {"findAndModify": name, "query": {"k": 1}, "remove": True}}
    yield {"mapReduce": name, **MAP_REDUCE, "out": "made", "finalize": "function() {}"}
    yield {"mapReduce": name, **MAP_REDUCE, "out": {"replace": "made"}}
    yield {"mapReduce": name, **MAP_REDUCE, "out": {"merge": "made", "db": DB}}
    yield {"mapReduce": name, **MAP_REDUCE, "out": {"reduce": "made"}}
    yield {"insert": name, "documents": [{"k": 5}], "writeConcern": {"w": "majority"}}
    yield {"update": name, "updates": [{"q": {"k": 1}, "u": {"$set": {"a": "x"}}, "hint": "_id_"}]}
    yield {"update": name, "updates": [{"q": {"k": 1}, "u": [{"$set": {"a": "$k"}}, {"$unset": "q"}]}]}
    yield {"delete": name, "deletes": [{"q": {"k": 9}, "limit": 1, "hint": "_id_", "collation": {"locale": "en"}}]}
    yield {"findAndModify": name, "query": {"k": 1}, "update": {"$set": {"a": "x"}}, "hint": "_id_"}
    yield {"createIndexes": name, "indexes": [{"key": {"b": "text"}, "name": "b", "default_language": "english"}]}
    yield {"dropIndexes": name, "index": "none"}
    yield {"dropIndexes": name, "index": ["none"]}
    yield {"collMod": name, "validationLevel": "off", "validationAction": "warn"}
    yield {"setIndexCommitQuorum": name, "indexNames": ["none"], "commitQuorum": "majority"}
    yield {"getMore": Int64(5), "collection": name}
    yield from ({each: name} for each in ("listIndexes", "collStats", "validate", "planCacheClear"))


ON_DATABASE: Final[list[Command]] = [
    {"create": "made", "timeseries": {"timeField": "t", "metaField": "m", "granularity": "seconds"}},
    {"create": "made", "validationLevel": "off", "validationAction": "warn"},
    {"listCollections": 1, "$readPreference": {"mode": "primary"}},
    {"filemd5": "x", "root": "fs"},
]

ON_ADMIN: Final[list[Command]] = [
    {"renameCollection": f"{DB}.none", "to": f"{DB}.none2"},
    {"getLog": "global"},
    {"ping": 1, "readConcern": {"level": "local"}, "$readPreference": {"mode": "primary"}},
    {"dropConnections": 1, "hostAndPort": ["localhost:1"]},
    {
        "hello": 1,
        "client": {"application": {"name": "x"}, "driver": {"name": "x", "version": "1"}, "os": {"type": "x"}},
    },
    {"hello": 1, "saslSupportedMechs": "admin.nobody", "hostInfo": "x:1"},
    {"createUser": "u", "pwd": "x", "roles": ["read", {"role": "read", "db": "a"}], "mechanisms": ["SCRAM-SHA-256"]},
    {"createUser": "u", "pwd": "x", "roles": [], "authenticationRestrictions": [{"clientSource": ["1.1.1.1"]}]},
    {"usersInfo": "u"},
    {"usersInfo": [{"user": "u", "db": "admin"}]},
    {"grantRolesToUser": "u", "roles": ["read", {"role": "read", "db": "a"}]},
    {"createRole": "r", "privileges": [{"resource": {"db": "a", "collection": "b"}, "actions": ["find"]}], "roles": []},
    {"rolesInfo": "r", "showPrivileges": "asUserFragment"},
    {"rolesInfo": [{"role": "r", "db": "admin"}]},
    {"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "local"}},
    {"getClusterParameter": "changeStreamOptions"},
    {"getClusterParameter": ["changeStreamOptions"]},
    {"setFeatureCompatibilityVersion": "6.0"},
    {"killAllSessionsByPattern": [{"users": [{"user": "nobody", "db": "y"}]}]},
    {"logRotate": "server"},
    {"configureFailPoint": "failCommand", "mode": "off", "data": {"failCommands": ["none"], "appName": "none"}},
    {"connectionStatus": 1, "showPrivileges": "x"},
    {"validateDBMetadata": 1, "db": "x", "collection": "y", "apiParameters": {"version": "1"}},
    {"logMessage": "x"},
    {"setParameter": 1, "clusterAuthMode": "x"},
]


@pytest.fixture(scope="module", autouse=True)
def filled(router: Client, plain: Client) -> None:
    shard_by_range(router[DB], "sharded", key="k", split_at=0)
    for client in (router, plain):
        for name in ("sharded", "other"):
            collection = client[DB][name]
            collection.create_index([("loc", "2dsphere")])
            collection.insert_many({"k": number, "a": number, "l": [1], "loc": [1, number]} for number in range(-2, 3))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - a BSON value can be anything
    """Yield the paths of a command's strings."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, name))


def replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """The same with something else at a place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def value_at(value: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a BSON value can be anything
    for name in path:
        value = value[name]
    return value


def outcome(client: Client, command: Command, db: str) -> tuple[object, ...]:
    reply = run(client, command, db)
    errors = reply.get("writeErrors") or ([] if reply["ok"] else [reply])
    return tuple((error["code"], error.get("codeName"), error["errmsg"]) for error in errors)


def differing(router: Client, plain: Client, commands: Iterable[Command], db: str) -> list[object]:
    found: list[object] = []
    for command in commands:
        for place in places(command):
            for scope in SCOPES:
                wrong = replaced(command, place, Code(value_at(command, place), scope))
                ours, theirs = (outcome(client, wrong, db) for client in (router, plain))
                if ours != theirs:
                    found.append((wrong, ours, theirs))
    return found


@pytest.mark.parametrize("name", ["sharded", "other"])
def test_commands_on_collections(router: Client, plain: Client, name: str) -> None:
    assert differing(router, plain, on(name), DB) == []


def test_commands_on_the_database(router: Client, plain: Client) -> None:
    assert differing(router, plain, ON_DATABASE, DB) == []


def test_other_commands(router: Client, plain: Client) -> None:
    assert differing(router, plain, ON_ADMIN, "admin") == []


ONLY_ON_ROUTERS: Final[list[Command]] = [
    {"enableSharding": DB, "primaryShard": "shard0"},
    {"shardCollection": f"{DB}.more", "key": {"k": "hashed"}, "collation": {"locale": "simple"}},
    {"split": f"{DB}.sharded", "middle": {"k": 0}},
    {"moveChunk": f"{DB}.sharded", "find": {"k": 1}, "to": "shard1"},
    {"moveRange": f"{DB}.sharded", "min": {"k": 0}, "toShard": "shard1"},
    {"movePrimary": DB, "to": "shard0"},
    {"mergeChunks": f"{DB}.sharded", "bounds": [{"k": 0}, {"k": 5}]},
    {"clearJumboFlag": f"{DB}.sharded", "find": {"k": 1}},
    {"balancerCollectionStatus": f"{DB}.sharded"},
    {"configureCollectionBalancing": f"{DB}.sharded", "chunkSize": 1},
    {"refineCollectionShardKey": f"{DB}.none", "key": {"k": 1, "a": 1}},
    {"reshardCollection": f"{DB}.none", "key": {"a": 1}},
    {"addShard": "nowhere/127.0.0.1:1", "name": "x"},
    {"removeShard": "none"},
    {"addShardToZone": "none", "zone": "z"},
    {"removeShardFromZone": "none", "zone": "z"},
    {"updateZoneKeyRange": f"{DB}.none", "min": {"k": 0}, "max": {"k": 1}, "zone": "z"},
    {"getShardVersion": f"{DB}.sharded"},
    {"flushRouterConfig": f"{DB}.sharded"},
    {"setAllowMigrations": f"{DB}.sharded", "allowMigrations": True},
    {"balancerStart": 1, "writeConcern": {"w": "majority"}},
]


def test_commands_that_only_routers_have(router: Client) -> None:
    """They refuse it as they refuse another wrong type, or ignore both."""
    found = []
    for command in ONLY_ON_ROUTERS:
        for place in places(command):
            if place in (("key", "k"), ("writeConcern", "w")):
                continue  # where a number means something else
            wrong: tuple[object, ...] = (Code(value_at(command, place)), 5)
            code, number = (run(router, replaced(command, place, each)).get("code") for each in wrong)
            if code != number:
                found.append((command, place, code, number))
    assert found == []
