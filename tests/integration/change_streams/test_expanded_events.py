"""Change streams with ``showExpandedEvents``: changes of collections, indexes and options."""

from typing import Any, Final

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.database import Database

from tests.integration.change_streams.test_change_streams import Stream, take
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_by_range, shard_collection
from tests.local_cluster import Client

OF_EVERY_TIME: Final = frozenset({"_id", "clusterTime", "wallTime", "collectionUUID", "stateBeforeChange"})


def watch(watched: Client | Database[Document] | Documents, **options: Any) -> Stream:  # noqa: ANN401
    """A stream with all events."""
    return watched.watch(show_expanded_events=True, max_await_time_ms=500, **options)


def kinds(events: list[Document]) -> list[str]:
    return [event["operationType"] for event in events]


def brief(event: Document) -> Document:
    return {name: value for name, value in event.items() if name not in OF_EVERY_TIME}


def test_events_of_an_unsharded_collection_are_those_of_a_mongod(
    database: Database[Document], upper_mongod: Client
) -> None:
    alone = upper_mongod[f"{database.name}_alone"]
    shown = []
    for watched in (database, alone):
        with watch(watched) as stream:
            watched.create_collection("c", validator={"a": {"$gt": 0}})
            watched.c.create_index("a")
            watched.command("collMod", "c", index={"name": "a_1", "hidden": True})
            watched.command("collMod", "c")
            watched.c.drop_index("a_1")
            watched.create_collection("v", viewOn="c", pipeline=[])
            watched.command("collMod", "v", viewOn="c", pipeline=[{"$limit": 1}])
            watched.v.drop()
            watched.c.rename("d")
            watched.d.drop()
            events = take(stream, 10)
            assert stream.try_next() is None
        text = str([brief(event) for event in events]).replace(watched.name, "DB")
        shown.append(text)
    upper_mongod.drop_database(alone.name)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("key", [{"key": 1}, {"key": "hashed"}], ids=str)
def test_a_collection_is_sharded(database: Database[Document], key: Document) -> None:
    with watch(database) as stream, watch(database.c) as of_collection, database.watch(max_await_time_ms=500) as plain:
        shard_collection(database, "c", key)
        database.c.insert_one({"_id": 1, "key": 1})
        events = take(stream, 4)
        assert kinds(events) == ["create", "createIndexes", "shardCollection", "insert"]
        assert take(of_collection, 4) == events
        assert kinds(take(plain, 1)) == ["insert"]
        database.command("collMod", "c")
        assert all(event["operationType"] == "modify" for event in take(stream, 1)), "a change that changes nothing"
    sharded = events[2]
    assert sharded["operationDescription"].items() >= {"shardKey": key}.items()
    assert sharded["ns"] == {"db": database.name, "coll": "c"}
    assert sharded["collectionUUID"] == events[3]["collectionUUID"]
    assert "stateBeforeChange" not in sharded
    with watch(database, resume_after=events[1]["_id"]) as resumed:
        assert take(resumed, 2) == events[2:]
    with watch(database, resume_after=sharded["_id"]) as resumed:
        assert take(resumed, 1) == events[3:]


def test_a_match_on_the_kind_of_event(database: Database[Document]) -> None:
    wanted = [{"$match": {"operationType": "shardCollection"}}]
    with database.watch(wanted, show_expanded_events=True, max_await_time_ms=500) as stream:
        shard_collection(database, "c", {"key": 1})
        assert kinds(take(stream, 1)) == ["shardCollection"]
        assert stream.try_next() is None


def test_indexes_and_options_are_events_of_all_shards_that_own_a_part(client: Client, placed: Documents) -> None:
    database = placed.database
    with watch(database) as stream:
        placed.create_index("a")
        created = take(stream, 2)
        assert [index["name"] for event in created for index in event["operationDescription"]["indexes"]] == ["a_1"] * 2
        database.command("collMod", placed.name, index={"name": "a_1", "hidden": True})
        assert kinds(take(stream, 2)) == ["modify"] * 2
        placed.drop_index("a_1")
        assert kinds(take(stream, 2)) == ["dropIndexes"] * 2
        client.admin.command("moveChunk", placed.full_name, find={"key": 1}, to=UPPER)
        placed.create_index("b")
        assert kinds(take(stream, 1)) == ["createIndexes"]
        placed.drop_index("b_1")
        assert kinds(take(stream, 1)) == ["dropIndexes"]
        assert stream.try_next() is None


def test_what_moves_with_a_chunk_is_no_event(client: Client, database: Database[Document]) -> None:
    with watch(database) as stream:
        shard_collection(database, "c", {"key": 1})
        database.c.create_index("a")
        assert kinds(take(stream, 4)) == ["create", "createIndexes", "shardCollection", "createIndexes"]
        bounds = [{"key": MinKey()}, {"key": MaxKey()}]
        client.admin.command("moveChunk", f"{database.name}.c", bounds=bounds, to=UPPER)
        client.admin.command("moveChunk", f"{database.name}.c", bounds=bounds, to=LOWER)
        database.c.insert_one({"key": 1})
        assert kinds(take(stream, 1)) == ["insert"]
        assert stream.try_next() is None


def test_a_sharded_collection_is_dropped(database: Database[Document]) -> None:
    with watch(database) as stream, watch(database.ranged) as of_collection:
        shard_by_range(database).drop()
        assert kinds(take(stream, 4)) == ["create", "createIndexes", "shardCollection", "drop"]
        assert kinds(take(of_collection, 5))[-2:] == ["drop", "invalidate"]
        database.after.insert_one({})
        assert kinds(take(stream, 2)) == ["create", "insert"]


@pytest.mark.parametrize(
    "change",
    [
        {"refineCollectionShardKey": "DB.ranged", "key": {"key": 1, "other": 1}},
        {"reshardCollection": "DB.ranged", "key": {"other": 1}, "numInitialChunks": 2},
        {"movePrimary": "DB", "to": UPPER},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changes_that_are_no_events_in_this_version_leave_no_traces(
    client: Client, placed: Documents, change: Document
) -> None:
    """Nothing of copies and temporary collections, nothing lost, nothing twice."""
    database = placed.database
    placed.create_index({"key": 1, "other": 1})
    placed.insert_many({"key": n * 100, "other": -n} for n in range(10))
    database["unsharded"].insert_one({})
    command = {
        name: value.replace("DB", database.name) if isinstance(value, str) else value for name, value in change.items()
    }
    with watch(placed) as of_collection, watch(database) as of_database, watch(client) as of_cluster:
        placed.insert_one({"key": 1, "other": 1})
        database["unsharded"].insert_one({})
        client.admin.command(command)
        placed.insert_one({"key": 999, "other": 999})
        database["unsharded"].insert_one({})
        database["last"].insert_one({})
        assert kinds(take(of_collection, 2)) == ["insert"] * 2
        assert of_collection.try_next() is None
        for stream in (of_database, of_cluster):
            events = take(stream, 6)
            assert [(event["operationType"], event["ns"]["coll"]) for event in events] == [
                *(("insert", name) for name in ("ranged", "unsharded") * 2),
                *((kind, "last") for kind in ("create", "insert")),
            ]
            assert stream.try_next() is None


@pytest.mark.parametrize("is_replacing", [False, True], ids=["new name", "over another one"])
def test_a_sharded_collection_is_renamed(client: Client, placed: Documents, *, is_replacing: bool) -> None:
    database = placed.database
    if is_replacing:
        shard_by_range(database, "target")
    with (
        watch(placed) as of_source,
        watch(database["target"]) as of_target,
        watch(database) as of_database,
        watch(client) as of_cluster,
    ):
        placed.insert_many([{"key": 1}, {"key": 999}])
        placed.rename("target", dropTarget=is_replacing)
        database["target"].insert_many([{"key": 2}, {"key": 998}])
        assert kinds(take(of_source, 4)) == ["insert", "insert", "rename", "invalidate"]
        assert kinds(take(of_target, 2)) == ["rename", "invalidate"]
        for stream in (of_database, of_cluster):
            events = take(stream, 5)
            assert kinds(events) == ["insert", "insert", "rename", "insert", "insert"]
            assert events[2]["to"] == {"db": database.name, "coll": "target"}
            assert ("dropTarget" in events[2]["operationDescription"]) is is_replacing
            assert events[2]["collectionUUID"] == events[3]["collectionUUID"]
            assert stream.try_next() is None
