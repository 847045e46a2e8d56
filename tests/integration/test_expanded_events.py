"""Change streams with ``showExpandedEvents``: what is done to collections, indexes and options."""

from typing import Any, Final

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.database import Database

from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_by_range, shard_collection
from tests.integration.test_change_streams import Stream, take
from tests.local_cluster import Client

OF_EVERY_TIME: Final = frozenset({"_id", "clusterTime", "wallTime", "collectionUUID", "stateBeforeChange"})


def watch(watched: Database[Document] | Documents, **options: Any) -> Stream:  # noqa: ANN401
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
