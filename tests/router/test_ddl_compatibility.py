"""DDL and listing commands through the router and on a plain mongod.

Where mongos answers as mongod does, both replies are compared. Where it does not, the reply of the router is compared
with mongos 6.0's.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster

_numbers = count(1)

Command = dict[str, Any]

# Fields that differ between collections, and fields that a router omits.
_VOLATILE = frozenset({"operationTime", "$clusterTime", "uuid", "electionId", "opTime"})


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct("router.0") as connected:
        yield connected


@pytest.fixture(scope="module")
def other_router(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct("router.1") as connected:
        yield connected


@pytest.fixture(scope="module")
def plain(cluster: RunningCluster) -> Iterator[Client]:
    """A mongod without a router."""
    with cluster.direct("shard0.0.mongod") as connected:
        yield connected


@pytest.fixture
def db(router: Client) -> Iterator[str]:
    """The name of a database that no other test uses."""
    name = f"ddl_{next(_numbers)}"
    yield name
    router.drop_database(name)


@pytest.fixture
def plain_db(plain: Client) -> Iterator[str]:
    """The same name, for the plain mongod."""
    name = f"plain_{next(_numbers)}"
    yield name
    plain.drop_database(name)


def run(client: Client, db: str, command: Command) -> dict[str, Any]:
    """The reply to a command, successful or not, without fields that differ between runs."""
    try:
        reply: dict[str, Any] = client[db].command(command)
    except OperationFailure as error:
        reply = dict(error.details or {})
    stable: dict[str, Any] = _stable(reply, db)
    return stable


def _stable(value: Any, db: str) -> Any:  # noqa: ANN401 - a BSON value can be anything
    if isinstance(value, dict):
        return {name: _stable(each, db) for name, each in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [_stable(each, db) for each in value]
    return value.replace(db, "DB") if isinstance(value, str) else value


def shard(router: Client, db: str, collection: str, key: dict[str, Any]) -> None:
    """Shard a collection over both shards."""
    router.admin.command({"shardCollection": f"{db}.{collection}", "key": key})


def raw_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Each shard's reply."""
    return list(reply["raw"].values())


INDEX = {"key": {"k": 1}, "name": "k_1"}
STORE: Command = {"insert": "c", "documents": [{"_id": n, "k": n} for n in range(10)]}
CREATE_INDEX: Command = {"createIndexes": "c", "indexes": [INDEX]}

SAME: dict[str, list[Command]] = {
    "create": [{"create": "c"}, {"listCollections": 1}],
    "create capped": [{"create": "c", "capped": True, "size": 100, "max": 5}, {"listCollections": 1}],
    "create capped without a size": [{"create": "c", "capped": True}],
    "create with a collation": [{"create": "c", "collation": {"locale": "fr"}}, {"listCollections": 1}],
    "create with a validator": [{"create": "c", "validator": {"k": {"$gt": 1}}}, {"listCollections": 1}],
    "create clustered": [
        {"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": True}},
        {"listCollections": 1},
        {"listIndexes": "c"},
    ],
    "create a view": [
        STORE,
        {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"k": 1}}]},
        {"listCollections": 1, "filter": {"name": "v"}},
        {"listIndexes": "v"},
    ],
    "create with an unknown option": [{"create": "c", "nonsense": 1}],
    "create with a name that is not a string": [{"create": 1}],
    "create with a dollar in the name": [{"create": "a$b"}],
    "create a system collection": [{"create": "system.mine"}],
    "list collections of a missing database": [{"listCollections": 1}],
    "list names of collections": [STORE, {"listCollections": 1, "nameOnly": True}],
    "list filtered collections": [STORE, {"create": "d"}, {"listCollections": 1, "filter": {"name": "d"}}],
    "list indexes": [CREATE_INDEX, {"listIndexes": "c"}],
    "list indexes of a missing database": [{"listIndexes": "c"}],
    "list indexes of a missing collection": [STORE, {"listIndexes": "d"}],
    "drop indexes of a missing collection": [STORE, {"dropIndexes": "d", "index": "*"}],
    "drop a missing index": [STORE, {"dropIndexes": "c", "index": "no"}],
    "drop the _id index": [STORE, {"dropIndexes": "c", "index": "_id_"}],
    "drop indexes without an index": [STORE, {"dropIndexes": "c"}],
    "drop indexes by number": [STORE, {"dropIndexes": "c", "index": 5}],
    "drop indexes by null": [STORE, {"dropIndexes": "c", "index": None}],
    "drop indexes with an unknown option": [STORE, {"dropIndexes": "c", "index": "*", "nonsense": 1}],
    "drop with an unknown option": [STORE, {"drop": "c", "nonsense": 1}, {"listCollections": 1, "nameOnly": True}],
    "drop a database with an unknown option": [{"dropDatabase": 1, "nonsense": 1}],
    "modify a missing collection": [STORE, {"collMod": "d", "validator": {}}],
    "modify with an unknown option": [STORE, {"collMod": "c", "nonsense": 1}],
    "convert to capped": [
        STORE,
        {"convertToCapped": "c", "size": 10_000},
        {"listCollections": 1},
        {"count": "c", "query": {"k": {"$gte": 0}}, "limit": 3, "skip": 20},
    ],
    "convert a missing collection": [STORE, {"convertToCapped": "d", "size": 10_000}],
    "convert without a size": [STORE, {"convertToCapped": "c"}],
    "drop a database by another argument": [{"dropDatabase": 2}],
    "list databases of another database": [{"listDatabases": 1}],
    "rename in another database": [{"renameCollection": "a.b", "to": "a.c"}],
}


@pytest.mark.parametrize("case", SAME)
def test_same_as_mongod(router: Client, plain: Client, db: str, plain_db: str, case: str) -> None:
    for command in SAME[case]:
        ours, theirs = run(router, db, command), run(plain, plain_db, command)
        if "raw" in ours:
            # Reported for each shard, and compared in tests of their own.
            assert ours["ok"] == theirs["ok"]
            continue
        ours.pop("shards", None)
        assert ours == theirs, command


RENAMES: dict[str, Command] = {
    "to itself": {"renameCollection": "DB.c", "to": "DB.c"},
    "what is missing": {"renameCollection": "DB.none", "to": "DB.d"},
    "to what exists": {"renameCollection": "DB.c", "to": "DB.e"},
    "to an existing name, dropping it": {"renameCollection": "DB.c", "to": "DB.e", "dropTarget": True},
    "to no namespace": {"renameCollection": "DB.c", "to": "nowhere"},
    "nowhere": {"renameCollection": "DB.c"},
    "with an unknown option": {"renameCollection": "DB.c", "to": "DB.d", "nonsense": 1},
    "what has a null character": {"renameCollection": "DB.a\0b", "to": "DB.d"},
    "to a name with a null character": {"renameCollection": "DB.c", "to": "DB.a\0b"},
    "to another name": {"renameCollection": "DB.c", "to": "DB.d"},
}


@pytest.mark.parametrize("case", RENAMES)
def test_rename_same_as_mongod(router: Client, plain: Client, db: str, plain_db: str, case: str) -> None:
    answers = []
    for client, name in ((router, db), (plain, plain_db)):
        client[name].command(STORE)
        client[name].e.insert_one({"_id": "e"})
        command = {
            field: value.replace("DB", name) if isinstance(value, str) else value
            for field, value in RENAMES[case].items()
        }
        reply = _stable(run(client, "admin", command), name)
        answers.append((reply, sorted(client[name].list_collection_names()), client[name].e.count_documents({})))
    assert answers[0] == answers[1]


def test_rename_to_another_database(router: Client, other_router: Client, db: str) -> None:
    router[db].command(STORE)
    target = f"{db}_target"
    assert run(router, "admin", {"renameCollection": f"{db}.c", "to": f"{target}.d"}) == {"ok": 1.0}
    assert other_router[db].c.count_documents({}) == 0
    assert other_router[target].d.count_documents({}) == 10
    router.drop_database(target)


# Where mongos differs from mongod


def test_create_again_is_fine_with_the_same_options(router: Client, db: str) -> None:
    command = {"create": "c", "collation": {"locale": "en"}}
    assert run(router, db, command) == {"ok": 1.0}
    assert run(router, db, command) == {"ok": 1.0}


def test_create_again_with_other_options(router: Client, db: str) -> None:
    router[db].command({"create": "c", "capped": True, "size": 256})
    reply = run(router, db, {"create": "c"})
    assert reply["code"] == 48
    assert reply["errmsg"].startswith("namespace DB.c already exists, but with different options: ")


def test_drop_tells_nothing_of_what_it_dropped(router: Client, db: str) -> None:
    router[db].command(STORE)
    assert run(router, db, {"drop": "c"}) == {"ok": 1.0}
    assert run(router, db, {"drop": "c"}) == {"ok": 1.0}
    assert run(router, db, {"find": "c"})["cursor"]["firstBatch"] == []


def test_drop_in_a_missing_database(router: Client, db: str) -> None:
    assert run(router, db, {"drop": "c"}) == {"info": "database does not exist", "ok": 1.0}


@pytest.mark.parametrize("fixed", ["config", "admin"])
def test_collections_of_the_cluster_are_not_dropped(router: Client, fixed: str) -> None:
    reply = run(router, fixed, {"drop": "any"})
    assert (reply["code"], reply["errmsg"]) == (20, "Cannot drop collection in 'DB' database in sharded cluster")
    assert run(router, fixed, {"dropDatabase": 1})["errmsg"] == "Cannot drop the DB database"
    assert run(router, fixed, {"dropIndexes": "any", "index": "*"})["code"] == 20


def test_drop_database(router: Client, other_router: Client, db: str) -> None:
    router[db].command(STORE)
    shard(router, db, "sharded", {"k": "hashed"})
    assert sorted(other_router[db].list_collection_names()) == ["c", "sharded"]
    assert run(router, db, {"dropDatabase": 1}) == {"dropped": "DB", "ok": 1.0}
    assert run(router, db, {"dropDatabase": 1}) == {"info": "database does not exist", "ok": 1.0}
    assert other_router[db].list_collection_names() == []
    assert router.config.collections.find_one({"_id": f"{db}.sharded"}) is None


def test_other_router_learns_of_a_dropped_database(router: Client, other_router: Client, db: str) -> None:
    other_router[db].command(STORE)
    router.drop_database(db)
    assert other_router[db].list_collection_names() == []
    assert other_router[db].c.count_documents({}) == 0
    other_router[db].command(STORE)
    assert router[db].c.count_documents({}) == 10


def test_other_router_learns_of_a_drop(router: Client, other_router: Client, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command(STORE)
    assert other_router[db].c.count_documents({}) == 10
    router[db].drop_collection("c")
    assert other_router[db].c.count_documents({}) == 0
    other_router[db].c.insert_one({"_id": 1})
    assert run(router, db, {"collStats": "c"})["sharded"] is False


def test_create_indexes(router: Client, cluster: RunningCluster, db: str) -> None:
    reply = run(router, db, CREATE_INDEX)
    (connection_string,) = reply["raw"]
    assert connection_string in cluster.shards.values()
    assert raw_of(reply) == [
        {
            "numIndexesBefore": 1,
            "numIndexesAfter": 2,
            "createdCollectionAutomatically": True,
            "commitQuorum": "votingMembers",
            "ok": 1.0,
        }
    ]
    assert reply["ok"] == 1.0
    assert raw_of(run(router, db, CREATE_INDEX))[0]["note"] == "all indexes already exist"


def test_create_indexes_on_all_owning_shards(router: Client, cluster: RunningCluster, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    reply = run(router, db, CREATE_INDEX)
    assert set(reply["raw"]) == set(cluster.shards.values())
    assert [answer["numIndexesAfter"] for answer in raw_of(reply)] == [3, 3]
    assert [index["name"] for index in router[db].c.list_indexes()] == ["_id_", "k_hashed", "k_1"]


def test_create_indexes_through_a_router_that_does_not_know_the_collection_is_sharded(
    router: Client, other_router: Client, cluster: RunningCluster, db: str
) -> None:
    other_router[db].command(STORE)
    router[db].command({"createIndexes": "c", "indexes": [{"key": {"k": "hashed"}, "name": "k_hashed"}]})
    router[db].drop_collection("c")
    shard(router, db, "c", {"k": "hashed"})
    assert set(run(other_router, db, CREATE_INDEX)["raw"]) == set(cluster.shards.values())


def test_unique_index_has_to_begin_with_the_shard_key(router: Client, db: str) -> None:
    shard(router, db, "c", {"k": 1})
    unique = {"key": {"other": 1}, "name": "u", "unique": True}
    reply = run(router, db, {"createIndexes": "c", "indexes": [unique]})
    assert (reply["code"], reply["codeName"]) == (67, "CannotCreateIndex")
    assert reply["errmsg"] == (
        "cannot create index with 'unique' or 'prepareUnique' option over { other: 1 } with shard key pattern { k: 1 }"
    )
    assert raw_of(reply)[0]["code"] == 67
    good = unique | {"key": {"k": 1, "other": 1}}
    assert run(router, db, {"createIndexes": "c", "indexes": [good]})["ok"] == 1.0


def test_create_indexes_that_cannot_be(router: Client, plain: Client, db: str, plain_db: str) -> None:
    for indexes in ([], [{"key": {"a": 1}}], [{"key": {"a": "nonsense"}, "name": "a"}], [INDEX, INDEX | {"name": "x"}]):
        command = {"createIndexes": "c", "indexes": indexes}
        ours, theirs = run(router, db, command), run(plain, plain_db, command)
        assert {**ours, "raw": None} == {**theirs, "raw": None}
        assert raw_of(ours) == [theirs]


def test_drop_indexes(router: Client, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command(CREATE_INDEX)
    assert [answer["nIndexesWas"] for answer in raw_of(run(router, db, {"dropIndexes": "c", "index": "k_1"}))] == [3, 3]
    router[db].command(CREATE_INDEX)
    assert run(router, db, {"deleteIndexes": "c", "index": {"k": 1}})["ok"] == 1.0
    router[db].command(CREATE_INDEX)
    assert run(router, db, {"dropIndexes": "c", "index": "*"})["ok"] == 1.0
    assert [index["name"] for index in router[db].c.list_indexes()] == ["_id_", "k_hashed"]


def test_index_of_the_shard_key_is_not_dropped(router: Client, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    reply = run(router, db, {"dropIndexes": "c", "index": "k_hashed"})
    assert reply["codeName"] == "CannotDropShardKeyIndex"
    assert [index["name"] for index in router[db].c.list_indexes()] == ["_id_", "k_hashed"]


def test_collections_are_modified_on_all_owning_shards(router: Client, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command(CREATE_INDEX)
    reply = run(router, db, {"collMod": "c", "index": {"name": "k_1", "hidden": True}})
    assert raw_of(reply) == [{"hidden_old": False, "hidden_new": True, "ok": 1.0}] * 2


def test_cursor_of_list_collections(router: Client, db: str) -> None:
    names = [f"c{number}" for number in range(7)]
    for name in names:
        router[db].create_collection(name)
    opened = router[db].command({"listCollections": 1, "nameOnly": True, "cursor": {"batchSize": 3}})["cursor"]
    assert opened["ns"] == f"{db}.$cmd.listCollections"
    rest = router[db].command({"getMore": opened["id"], "collection": "$cmd.listCollections"})["cursor"]
    assert rest["id"] == 0
    assert sorted(entry["name"] for entry in opened["firstBatch"] + rest["nextBatch"]) == names


def test_cursor_of_list_indexes(router: Client, db: str) -> None:
    router[db].command({"createIndexes": "c", "indexes": [{"key": {f"f{n}": 1}, "name": f"f{n}"} for n in range(4)]})
    indexes = list(router[db].c.list_indexes())
    opened = router[db].command({"listIndexes": "c", "cursor": {"batchSize": 2}})["cursor"]
    assert (len(opened["firstBatch"]), opened["ns"]) == (2, f"{db}.c")
    rest = router[db].command({"getMore": opened["id"], "collection": "c"})["cursor"]["nextBatch"]
    assert [index["name"] for index in opened["firstBatch"] + rest] == [index["name"] for index in indexes]


def test_list_databases(router: Client, cluster: RunningCluster, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    reply = router.admin.command({"listDatabases": 1})
    entries = {entry["name"]: entry for entry in reply["databases"]}
    assert "local" not in entries
    assert list(entries["admin"]["shards"]) == ["config"]
    assert set(entries[db]["shards"]) == set(cluster.shards)
    assert entries[db]["sizeOnDisk"] == sum(entries[db]["shards"].values())
    assert isinstance(entries[db]["sizeOnDisk"], bson.Int64)
    assert entries[db]["empty"] is False
    assert reply["totalSize"] == sum(entry["sizeOnDisk"] for entry in reply["databases"])
    assert list(entries) == sorted(entries)


def test_list_databases_by_filter(router: Client, db: str) -> None:
    router[db].command(STORE)
    reply = run(router, "admin", {"listDatabases": 1, "nameOnly": True, "filter": {"name": db}})
    assert reply == {"databases": [{"name": db}], "ok": 1.0}


def test_coll_stats(router: Client, plain: Client, db: str, plain_db: str) -> None:
    for client, name in ((router, db), (plain, plain_db)):
        client[name].command(STORE)
    ours, theirs = run(router, db, {"collStats": "c"}), run(plain, plain_db, {"collStats": "c"})
    assert ours["sharded"] is False
    assert list(ours["shards"]) == [ours["primary"]]
    for name in ("ns", "count", "size", "nindexes", "capped", "scaleFactor", "numOrphanDocs"):
        assert ours[name] == theirs[name]
    assert ours["nchunks"] == 1
    assert ours["avgObjSize"] == 21.0 == float(theirs["avgObjSize"])


def test_coll_stats_of_a_sharded_collection(router: Client, cluster: RunningCluster, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command(STORE)
    reply = run(router, db, {"collStats": "c", "scale": 10})
    assert reply["sharded"] is True
    assert "primary" not in reply
    assert (reply["count"], reply["size"], reply["scaleFactor"]) == (10, 21, 10)
    assert reply["nchunks"] == router.config.chunks.count_documents(
        {"uuid": router.config.collections.find_one({"_id": f"{db}.c"})["uuid"]}  # type: ignore[index]
    )
    assert set(reply["shards"]) == set(cluster.shards)
    assert set(reply["indexSizes"]) == {"_id_", "k_hashed"}


def test_coll_stats_of_nothing(router: Client, db: str) -> None:
    reply = run(router, db, {"collStats": "c"})
    assert (reply["ok"], reply["sharded"], reply["shards"]) == (1.0, False, {})


@pytest.mark.parametrize(("scale", "code"), [(0, 4390200), ("much", 4390201)])
def test_coll_stats_with_a_bad_scale(router: Client, db: str, scale: object, code: int) -> None:
    assert run(router, db, {"collStats": "c", "scale": scale})["code"] == code


def test_db_stats(router: Client, cluster: RunningCluster, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command(STORE)
    reply = run(router, db, {"dbStats": 1})
    assert set(reply["raw"]) == set(cluster.shards.values())
    assert (reply["db"], reply["collections"], reply["objects"], reply["dataSize"]) == ("DB", 2, 10, 210.0)
    assert (reply["avgObjSize"], reply["scaleFactor"]) == (21.0, 1)
    assert run(router, db, {"dbStats": 1, "scale": 0})["errmsg"] == "Scale must be greater than zero"


@pytest.mark.parametrize("is_sharded", [False, True])
def test_data_size(router: Client, db: str, is_sharded: bool) -> None:
    if is_sharded:
        shard(router, db, "c", {"k": "hashed"})
    router[db].command(STORE)
    reply = run(router, db, {"dataSize": f"{db}.c"})
    assert (reply["size"], reply["numObjects"]) == (210.0, 10.0)
    assert run(router, "admin", {"dataSize": f"{db}.c"})["size"] == 210.0
    assert run(router, db, {"dataSize": "c"})["code"] == 73


@pytest.mark.parametrize("is_sharded", [False, True])
def test_validate(router: Client, cluster: RunningCluster, db: str, is_sharded: bool) -> None:
    if is_sharded:
        shard(router, db, "c", {"k": "hashed"})
    router[db].command(STORE)
    reply = run(router, db, {"validate": "c"})
    assert reply["valid"] is True
    assert len(reply["raw"]) == (2 if is_sharded else 1)
    assert set(reply["raw"]) <= set(cluster.shards)
    assert sum(answer["nrecords"] for answer in raw_of(reply)) == 10
    missing = run(router, db, {"validate": "none"})
    assert (missing["code"], missing["errmsg"]) == (26, "Collection 'DB.none' does not exist to validate.")


def test_sharded_collection_is_not_made_capped(router: Client, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    assert run(router, db, {"convertToCapped": "c", "size": 1000})["codeName"] == "IllegalOperation"


def test_index_filters(router: Client, cluster: RunningCluster, db: str) -> None:
    shard(router, db, "c", {"k": "hashed"})
    router[db].command({"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": [{"a": 1}]})
    reply = run(router, db, {"planCacheListFilters": "c"})
    (entry,) = reply["filters"]
    assert entry["indexes"] == [{"a": 1}]
    assert {name: reply[name]["filters"] for name in cluster.shards} == {name: [entry] for name in cluster.shards}
    assert run(router, db, {"planCacheClearFilters": "c"})["ok"] == 1.0
    assert run(router, db, {"planCacheListFilters": "c"})["filters"] == []
    assert run(router, db, {"planCacheClear": "c"})["ok"] == 1.0


def test_fsync(router: Client, cluster: RunningCluster) -> None:
    reply = run(router, "admin", {"fsync": 1})
    assert reply == {"numFiles": 2, "all": {name: {"numFiles": 1, "ok": 1.0} for name in cluster.shards}, "ok": 1.0}
    assert run(router, "admin", {"fsync": 1, "lock": True})["errmsg"] == "can't do lock through mongos"


def test_validate_db_metadata(router: Client, db: str) -> None:
    router[db].command(STORE)
    strict = {"validateDBMetadata": 1, "db": db, "apiParameters": {"version": "1", "strict": True}}
    assert run(router, "admin", strict) == {"apiVersionErrors": [], "ok": 1.0}
    router[db].d.create_index([("v", "text")])
    (error,) = run(router, "admin", strict)["apiVersionErrors"]
    assert error["codeName"] == "APIStrictError"


def test_compact_is_not_allowed(router: Client, db: str) -> None:
    assert run(router, db, {"compact": "c"})["code"] == 115
