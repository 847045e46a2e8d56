"""Change streams through the router, on collections, databases and the whole cluster."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from bson import Timestamp
from bson.max_key import MaxKey
from pymongo.change_stream import ChangeStream
from pymongo.database import Database
from pymongo.errors import OperationFailure
from pymongo.read_preferences import Nearest

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.profiles import profiling
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import connect_to_all, extra_router
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of

Stream = ChangeStream[Document]


def take(stream: Stream, count: int, *, within: float = 20.0) -> list[Document]:
    """The next events of a stream.

    Raises:
        AssertionError: there are fewer in time.
    """
    events: list[Document] = []

    def enough() -> bool:
        event = stream.try_next()
        if event is not None:
            events.append(event)
        return len(events) >= count

    eventually(enough, within=within, what=f"{count} events, but {events}")
    return events


def brief(events: list[Document]) -> list[tuple[str, Any]]:
    return [(event["operationType"], event.get("documentKey", {}).get("_id")) for event in events]


def insert(collection: Documents, *keys: int) -> None:
    for key in keys:
        collection.insert_one({"_id": key, "key": key})


BOTH = (1, SPLIT_AT + 1, 2, SPLIT_AT + 2, 3)


@pytest.mark.parametrize("level", ["collection", "database", "cluster"])
def test_events_of_both_shards_come_in_order(placed: Documents, level: str) -> None:
    watch = {"collection": placed.watch, "database": placed.database.watch, "cluster": placed.database.client.watch}
    mine = [{"$match": {"ns.db": placed.database.name}}]
    with watch[level](mine, max_await_time_ms=500) as stream:
        insert(placed, *BOTH)
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        placed.delete_one({"key": SPLIT_AT + 1})
        events = take(stream, 7)
        assert stream.try_next() is None
    assert brief(events) == [("insert", key) for key in BOTH] + [("update", 1), ("delete", SPLIT_AT + 1)]
    assert all(before["clusterTime"] < later["clusterTime"] for before, later in pairwise(events))
    assert all("$sortKey" not in event and "lsid" not in event for event in events)
    assert events[0]["documentKey"] == {"key": 1, "_id": 1}


def test_an_unsharded_collection(database: Database[Document]) -> None:
    with database.plain.watch(max_await_time_ms=500) as stream:
        database.plain.insert_one({"_id": 1})
        database.plain.replace_one({"_id": 1}, {"x": 1})
        events = take(stream, 2)
    assert brief(events) == [("insert", 1), ("replace", 1)]
    assert events[1]["fullDocument"] == {"_id": 1, "x": 1}


def test_a_move_is_no_event(client: Client, placed: Documents) -> None:
    insert(placed, *range(1, 40))
    with placed.watch(max_await_time_ms=500) as stream, placed.database.watch(max_await_time_ms=500) as of_database:
        client.admin.command("moveChunk", str(placed.full_name), find={"key": 1}, to=UPPER)
        insert(placed, 50)
        client.admin.command("moveChunk", str(placed.full_name), find={"key": 1}, to=LOWER, _waitForDelete=True)
        insert(placed, 51)
        assert brief(take(stream, 2)) == brief(take(of_database, 2)) == [("insert", 50), ("insert", 51)]
        assert stream.try_next() is None


@contextmanager
def writing(collection: Documents, count: int) -> Iterator[None]:
    """Insert that many documents during the block, which ends when they are inserted."""
    thread = Thread(target=insert, args=(collection, *range(count)))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_events_beside_moves_come_once_and_in_order(client: Client, placed: Documents) -> None:
    count = 400
    with placed.watch(max_await_time_ms=200) as stream:
        with writing(placed, count):
            for target in (UPPER, LOWER, UPPER):
                client.admin.command("moveChunk", placed.full_name, find={"key": 1}, to=target)
        events = take(stream, count)
        assert stream.try_next() is None
    assert brief(events) == [("insert", key) for key in range(count)]


@pytest.mark.parametrize("way", ["resume_after", "start_after", "start_at_operation_time"])
def test_resuming_with_another_router(placed: Documents, other_client: Client, way: str) -> None:
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, *BOTH)
        events = take(stream, 3)
    start = events[1]["clusterTime"] if way == "start_at_operation_time" else events[1]["_id"]
    expected = BOTH[1:] if way == "start_at_operation_time" else BOTH[2:]
    again = other_client[placed.database.name][placed.name]
    with again.watch(**{way: start}, max_await_time_ms=500) as resumed:
        assert brief(take(resumed, len(expected))) == [("insert", key) for key in expected]


def test_a_stream_begins_after_what_another_router_has_acknowledged(placed: Documents, other_client: Client) -> None:
    """Drivers need not gossip the times of one router to another."""
    elsewhere = other_client[placed.database.name][placed.name]
    for round_number in range(10):
        insert(placed, *(key + 10 * round_number for key in BOTH))
        with elsewhere.watch(max_await_time_ms=500) as stream:
            insert(placed, 10 * round_number)
            assert brief(take(stream, 1)) == [("insert", 10 * round_number)]


def open_raw(client: RawClient, collection: Documents, *stages: Document) -> None:
    """Send the command that opens a stream, without waiting for the reply."""
    pipeline = [{"$changeStream": {}}, *stages]
    client.send_command({"aggregate": collection.name, "pipeline": pipeline, "cursor": {}}, db=collection.database.name)


def first_event(client: RawClient, collection: Documents, cursor: Document) -> Document:
    """The first event of a stream, given the cursor in the reply to the command that opened it, and close it."""
    events = cursor["firstBatch"]
    get_more = {"getMore": cursor["id"], "collection": collection.name, "maxTimeMS": 500}

    def arrived() -> bool:
        events.extend(client.command(get_more, db=collection.database.name)["cursor"]["nextBatch"])
        return bool(events)

    eventually(arrived)
    client.command({"killCursors": collection.name, "cursors": [cursor["id"]]}, db=collection.database.name)
    first: Document = events[0]
    return first


def test_a_stream_begins_when_its_command_arrives(
    cluster: RunningCluster, placed: Documents, lower_mongod: Client
) -> None:
    """However long it then takes to check the pipeline and to open the stream."""
    kept: Document = {"$project": {"operationType": 1, "documentKey": 1}}
    blocked = {"failCommands": ["aggregate"], "namespace": placed.full_name, "blockConnection": True}
    with raw_client(cluster.address("router.0")) as watching:
        with fail_point(lower_mongod, "failCommand", {"times": 1}, **blocked, blockTimeMS=500) as point:
            open_raw(watching, placed, kept)
            point.wait_entered()
            insert(placed, 1)
        assert brief([first_event(watching, placed, watching.receive_reply()["cursor"])]) == [("insert", 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_write_directly_after_the_command_that_opens_a_stream(
    cluster: RunningCluster, placed: Documents, other_client: Client, workers: int
) -> None:
    """It is in the stream, whichever process it goes to, and what another router acknowledged before is not."""
    elsewhere = other_client[placed.database.name][placed.name]
    with extra_router(cluster, "--workers", str(workers)) as (address, _), ExitStack() as connections:
        by_worker: defaultdict[int, list[RawClient]] = defaultdict(list)
        for client in connect_to_all(address, workers, 8 * workers):
            connections.callback(client.socket.close)
            by_worker[client.command({"serverStatus": 1})["pid"]].append(client)
        (watching, arriving, *_), writing = next(iter(by_worker.values())), [*by_worker.values()][-1][-1]
        missed: list[int] = []
        for key in range(0, 100, 2):
            insert(elsewhere, -key - 1, key + SPLIT_AT)  # so the upper shard is ahead
            open_raw(watching, placed)
            arriving.command({"ping": 1})  # the command before has arrived then, too
            write = {"insert": placed.name, "documents": [{"_id": key, "key": key}]}
            assert writing.command(write, db=placed.database.name)["n"] == 1
            cursor = watching.receive_reply()["cursor"]
            insert(elsewhere, key + 1)
            first = first_event(watching, placed, cursor)["documentKey"]["_id"]
            assert first in (key, key + 1)
            if first != key:
                missed.append(key)
        # On a busy machine a write may overtake the question that was sent to its shard before, as on a mongod.
        assert len(missed) <= 3, missed


def test_the_token_of_a_quiet_stream_advances(placed: Documents) -> None:
    with placed.watch(max_await_time_ms=100) as stream:
        first = stream.resume_token
        assert first is not None
        assert stream.try_next() is None
        placed.database.other.insert_one({})

        def advanced() -> bool:
            assert stream.try_next() is None
            assert stream.resume_token is not None
            return bool(stream.resume_token["_data"] > first["_data"])

        eventually(advanced)
        insert(placed, 1)
        assert brief(take(stream, 1)) == [("insert", 1)]


def test_an_unknown_token_is_refused(placed: Documents) -> None:
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, 1)
        (event,) = take(stream, 1)
    other = event["_id"]["_data"].replace("2B020004", "2B0E0004")
    with (
        pytest.raises(OperationFailure, match="resume token was not found") as raised,
        placed.watch(resume_after={"_data": other}) as stream,
    ):
        take(stream, 1)
    assert raised.value.code == 280


def test_a_dropped_collection_ends_its_stream_once(placed: Documents) -> None:
    insert(placed, *BOTH)
    with placed.watch(max_await_time_ms=500) as stream, placed.database.watch(max_await_time_ms=500) as of_database:
        placed.drop()
        events = take(stream, 2)
        assert [event["operationType"] for event in events] == ["drop", "invalidate"]
        assert not stream.alive
        placed.database.after.insert_one({"_id": 1})
        assert [event["operationType"] for event in take(of_database, 2)] == ["drop", "insert"]
    with pytest.raises(OperationFailure) as raised:
        placed.watch(resume_after=events[1]["_id"])
    assert raised.value.code == 260
    with pytest.raises(OperationFailure, match="resume token was not found") as raised:
        placed.database.watch(start_after=events[1]["_id"])
    assert raised.value.code == 280
    with placed.watch(start_after=events[1]["_id"], max_await_time_ms=500) as again:
        insert(placed, 7)
        assert brief(take(again, 1)) == [("insert", 7)]
    with placed.watch(resume_after=events[0]["_id"], max_await_time_ms=500) as again:
        assert [event["operationType"] for event in take(again, 1)] == ["invalidate"]


def test_a_dropped_database_ends_its_stream_once(client: Client, placed: Documents) -> None:
    insert(placed, *BOTH)
    mine = [{"$match": {"ns.db": placed.database.name}}]
    with placed.database.watch(max_await_time_ms=500) as stream, client.watch(mine, max_await_time_ms=500) as of_all:
        client.drop_database(placed.database.name)
        assert [event["operationType"] for event in take(stream, 3)] == ["drop", "dropDatabase", "invalidate"]
        assert not stream.alive
        assert [event["operationType"] for event in take(of_all, 2)] == ["drop", "dropDatabase"]
        assert of_all.try_next() is None


def test_a_database_that_was_created_again_on_another_shard(client: Client, placed: Documents) -> None:
    database = placed.database
    insert(placed, *BOTH)
    database.plain.insert_one({"_id": 1})
    with database.watch(max_await_time_ms=500) as stream, database.plain.watch(max_await_time_ms=500) as of_plain:
        tokens = stream.resume_token, of_plain.resume_token
    client.drop_database(database.name)
    client.admin.command("enableSharding", database.name, primaryShard=UPPER)
    database.plain.insert_one({"_id": 2})
    with database.watch(resume_after=tokens[0], max_await_time_ms=500) as resumed:
        kinds = [event["operationType"] for event in take(resumed, 4)]
    assert kinds == ["drop", "drop", "dropDatabase", "invalidate"]
    with database.plain.watch(resume_after=tokens[1], max_await_time_ms=500) as resumed:
        assert [event["operationType"] for event in take(resumed, 2)] == ["drop", "invalidate"]


def test_a_collection_that_was_created_again(placed: Documents) -> None:
    with placed.database.watch(max_await_time_ms=500) as stream:
        token = stream.resume_token
    placed.insert_one({"_id": 1, "key": 1, "other": 1})
    placed.update_one({"key": 1}, {"$set": {"x": 1}})
    placed.drop()
    shard_by_range(placed.database, placed.name, key="other").insert_one({"_id": 1, "key": 1, "other": 1})
    with placed.database.watch(resume_after=token, full_document="updateLookup", max_await_time_ms=500) as resumed:
        inserted, updated, _, again = take(resumed, 4)
    assert inserted["documentKey"] == {"_id": 1}, "the key of the present collection is another one"
    assert again["documentKey"] == {"other": 1, "_id": 1}
    assert updated["fullDocument"] is None


def test_events_from_before_the_collection_was_sharded(client: Client, database: Database[Document]) -> None:
    documents = database.later
    with documents.watch(max_await_time_ms=500) as stream:
        documents.insert_one({"_id": 1, "key": 1})
        (inserted,) = take(stream, 1)
    documents.update_one({"_id": 1}, {"$set": {"x": 1}})
    documents.create_index("key")
    client.admin.command("shardCollection", documents.full_name, key={"key": 1})
    client.admin.command("split", documents.full_name, middle={"key": SPLIT_AT})
    client.admin.command("moveChunk", documents.full_name, find={"key": SPLIT_AT}, to=UPPER)
    documents.update_one({"key": 1}, {"$set": {"x": 2}})
    looking_up = partial(documents.watch, full_document="updateLookup", max_await_time_ms=500)
    with looking_up(resume_after=inserted["_id"]) as stream:
        events = take(stream, 2)
    assert [event["documentKey"] for event in events] == [{"_id": 1}, {"key": 1, "_id": 1}]
    assert [event["fullDocument"] for event in events] == 2 * [{"_id": 1, "key": 1, "x": 2}]
    documents.insert_one({"_id": 1, "key": SPLIT_AT})
    with (
        pytest.raises(OperationFailure, match="more than one document matching") as refused,
        looking_up(resume_after=inserted["_id"]) as stream,
    ):
        take(stream, 1)
    assert refused.value.code == ErrorCode.ChangeStreamFatalError
    assert refused.value.has_error_label("NonResumableChangeStreamError")
    with looking_up(start_after=events[0]["_id"]) as stream:
        event, other = take(stream, 2)
    assert event["fullDocument"] == {"_id": 1, "key": 1, "x": 2}, "the document of the shard that has the event"
    assert other["fullDocument"] == {"_id": 1, "key": SPLIT_AT}


def test_a_token_in_small_letters(placed: Documents) -> None:
    insert(placed, *BOTH)
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, 4, 5)
        first, second = take(stream, 2)
    with placed.watch(resume_after={"_data": first["_id"]["_data"].lower()}, max_await_time_ms=500) as resumed:
        assert take(resumed, 1) == [second]


def test_malformed_tokens(placed: Documents) -> None:
    """With the codes of a mongod."""
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, 1)
        (event,) = take(stream, 1)
    data = event["_id"]["_data"]
    malformed = [(data[:18], 50796), (data[:20], 15), (data[:28], 50793), (data[:-1], 9), (f"{data}\0", 9)]
    for token, code in malformed:
        with pytest.raises(OperationFailure) as raised:
            placed.watch(resume_after={"_data": token})
        assert raised.value.code == code, token


def test_a_start_in_the_future_advances_no_clock(client: Client, placed: Documents) -> None:
    hour_later = Timestamp(_now(client).time + 3600, 1)
    with placed.watch(start_at_operation_time=hour_later, max_await_time_ms=100) as stream:
        for _ in range(3):
            assert stream.try_next() is None
        insert(placed, 1)
        assert stream.try_next() is None
    assert _now(client) < hour_later


def test_a_renamed_collection(database: Database[Document]) -> None:
    database.old.insert_one({})
    with database.old.watch(max_await_time_ms=500) as stream:
        database.old.rename("new")
        assert [event["operationType"] for event in take(stream, 2)] == ["rename", "invalidate"]


def test_look_ups_have_the_comment_and_the_read_preference(cluster: RunningCluster, placed: Documents) -> None:
    insert(placed, 1)
    preferring = placed.with_options(read_preference=Nearest())
    with (
        cluster.direct(f"{LOWER}.0.mongod") as mongod,
        profiling(placed.database, mongod) as profiles,
        preferring.watch(full_document="updateLookup", comment="mine", max_await_time_ms=500) as stream,
    ):
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        (event,) = take(stream, 1)
        (find,) = profiles.entries({"command.find": placed.name, "command.comment": "mine"})
    assert event["fullDocument"] == {"_id": 1, "key": 1, "x": 1}
    assert find["command"]["$readPreference"] == {"mode": "nearest"}


def test_looked_up_documents(client: Client, placed: Documents) -> None:
    insert(placed, 1, SPLIT_AT + 1)
    with placed.watch(full_document="updateLookup", max_await_time_ms=500) as stream:
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        placed.update_one({"key": SPLIT_AT + 1}, {"$set": {"x": 1}})
        client.admin.command("moveChunk", placed.full_name, find={"key": 1}, to=UPPER)
        placed.update_one({"key": 1}, {"$set": {"x": 2}})
        placed.delete_one({"key": SPLIT_AT + 1})
        events = take(stream, 4)
    assert events[0]["fullDocument"] == {"_id": 1, "key": 1, "x": 2}
    assert events[0]["documentKey"] == {"key": 1, "_id": 1}
    assert events[1]["fullDocument"] is None
    assert "fullDocument" not in events[3]


def test_images(placed: Documents) -> None:
    insert(placed, 1, SPLIT_AT + 1)
    placed.database.command("collMod", placed.name, changeStreamPreAndPostImages={"enabled": True})
    with placed.watch(
        full_document="required", full_document_before_change="required", max_await_time_ms=500
    ) as stream:
        placed.update_one({"key": 1}, {"$set": {"x": {"y": 1}}})
        placed.update_one({"key": 1}, {"$inc": {"x.y": 1}})
        placed.delete_one({"key": SPLIT_AT + 1})
        events = take(stream, 3)
    assert [event.get("fullDocument") for event in events] == [
        {"_id": 1, "key": 1, "x": {"y": 1}},
        {"_id": 1, "key": 1, "x": {"y": 2}},
        None,
    ]
    assert events[1]["fullDocumentBeforeChange"] == {"_id": 1, "key": 1, "x": {"y": 1}}
    assert events[2]["documentKey"] == {"key": SPLIT_AT + 1, "_id": SPLIT_AT + 1}
    assert all("preImageId" not in event and "rawOplogUpdateSpec" not in event for event in events)


@pytest.mark.parametrize("required", ["full_document", "full_document_before_change"])
def test_required_images_of_events_that_the_client_leaves_out(placed: Documents, required: str) -> None:
    placed.database.command("collMod", placed.name, changeStreamPreAndPostImages={"enabled": True})
    insert(placed, 1)
    placed.database.without_images.insert_one({"_id": 1})
    of_placed: list[Document] = [{"$match": {"ns.coll": placed.name}}]
    with placed.database.watch(of_placed, max_await_time_ms=500, **{required: "required"}) as stream:  # type: ignore[arg-type]
        placed.database.without_images.update_one({"_id": 1}, {"$set": {"x": 1}})
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        (event,) = take(stream, 1)
    assert (event["ns"]["coll"], event["operationType"]) == (placed.name, "update")


def test_recorded_pre_images_complete_document_keys(placed: Documents) -> None:
    """Although the stream has not asked for them, and without being shown."""
    insert(placed, 1, SPLIT_AT + 1)
    placed.database.command("collMod", placed.name, changeStreamPreAndPostImages={"enabled": True})
    by_key: list[Document] = [{"$match": {"documentKey.key": {"$gt": SPLIT_AT}}}]
    with placed.watch(max_await_time_ms=500) as stream, placed.watch(by_key, max_await_time_ms=500) as matching:
        for key in (1, SPLIT_AT + 1):
            placed.update_one({"key": key}, {"$set": {"x": 1}})
        placed.update_one({"_id": 1, "key": 1}, {"$set": {"key": 2}})
        with placed.database.client.start_session() as session, session.start_transaction():
            placed.delete_one({"key": 2}, session=session)
            placed.delete_one({"key": SPLIT_AT + 1}, session=session)
        events = take(stream, 5)
        matched = take(matching, 2)
    keys = [(1, 1), (SPLIT_AT + 1, SPLIT_AT + 1), (2, 1), (2, 1), (SPLIT_AT + 1, SPLIT_AT + 1)]
    assert [event["operationType"] for event in events] == 3 * ["update"] + 2 * ["delete"]
    assert sorted([tuple(event["documentKey"].values()) for event in events[3:]]) == sorted(keys[3:])
    assert [event["documentKey"] for event in events[:3]] == [{"key": key, "_id": _id} for key, _id in keys[:3]]
    assert [event["documentKey"]["key"] for event in matched] == 2 * [SPLIT_AT + 1]
    assert all("preImageId" not in event and "fullDocumentBeforeChange" not in event for event in events)


def test_without_pre_images_a_document_key_is_the_id(placed: Documents) -> None:
    insert(placed, 1)
    with placed.watch(max_await_time_ms=500) as stream:
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        placed.delete_one({"key": 1})
        events = take(stream, 2)
    assert [event["documentKey"] for event in events] == 2 * [{"_id": 1}]
    assert all("preImageId" not in event for event in events)


def test_a_document_that_moves_is_deleted_before_it_is_inserted(placed: Documents) -> None:
    keys = [(1, SPLIT_AT + 1), (SPLIT_AT + 2, 2)]
    insert(placed, *(old for old, _ in keys))
    with placed.watch(max_await_time_ms=500) as stream:
        for old, new in keys:
            placed.update_one({"key": old}, {"$set": {"key": new}})
        events = take(stream, 6)
    assert brief(events) == [(kind, old) for old, _ in keys for kind in ("update", "delete", "insert")]
    assert [events[2]["documentKey"]["key"], events[5]["documentKey"]["key"]] == [new for _, new in keys]


def test_a_missing_image_is_an_error_or_null(placed: Documents) -> None:
    insert(placed, 1)
    with (
        placed.watch(full_document="whenAvailable", max_await_time_ms=500) as stream,
        placed.watch(full_document="required", max_await_time_ms=500) as strict,
    ):
        placed.update_one({"key": 1}, {"$set": {"x": 1}})
        assert take(stream, 1)[0]["fullDocument"] is None
        with pytest.raises(OperationFailure) as raised:
            take(strict, 1)
    assert raised.value.code == 47


def test_stages_of_the_client(placed: Documents) -> None:
    pipeline: list[Document] = [
        {"$match": {"operationType": "insert"}},
        {"$addFields": {"doubled": {"$multiply": ["$fullDocument.key", 2]}}},
        {"$match": {"documentKey.key": {"$gt": 1}}},
        {"$project": {"doubled": 1, "dollar": {"$literal": "$x"}}},
    ]
    with placed.watch(pipeline, max_await_time_ms=500) as stream:
        placed.update_many({}, {"$set": {"x": 1}})
        insert(placed, *BOTH)
        events = take(stream, 4)
    assert [event["doubled"] for event in events] == [2 * key for key in BOTH[1:]]
    assert all(event.keys() == {"_id", "doubled", "dollar"} for event in events)


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$group": {"_id": 1}}, 20),
        ({"$nonsense": 1}, 40324),
        ({"$match": {"$nonsense": 1}}, 2),
        ({"$project": {"x": {"$nonsense": 1}}}, 31325),
    ],
)
def test_stages_that_mongod_refuses(placed: Documents, stage: Document, code: int) -> None:
    with pytest.raises(OperationFailure) as raised:
        placed.watch([stage])
    assert raised.value.code == code


def test_a_stage_must_keep_the_token(placed: Documents) -> None:
    with placed.watch([{"$project": {"_id": 0}}], max_await_time_ms=500) as stream:
        insert(placed, 1)
        with pytest.raises(OperationFailure, match="resume token") as raised:
            take(stream, 1)
    assert raised.value.code == 280
    assert raised.value.has_error_label("NonResumableChangeStreamError")


@pytest.mark.parametrize("code", [91, 133, 234, 150, 63])
def test_a_driver_resumes_after_an_error(client: Client, placed: Documents, code: int) -> None:
    """The errors are ShutdownInProgress, FailedToSatisfyReadPreference, RetryChangeStream, StaleEpoch, and one of old
    versions."""
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, 1)
        take(stream, 1)
        with fail_point(client, "failGetMoreAfterCursorCheckout", {"times": 1}, errorCode=code):
            insert(placed, 2)
            assert brief(take(stream, 1)) == [("insert", 2)]


@pytest.mark.parametrize(("name", "code"), [("system.views", 73), ("view", 166)])
def test_what_has_no_stream(database: Database[Document], name: str, code: int) -> None:
    database.create_collection("view", viewOn="c", pipeline=[])
    with pytest.raises(OperationFailure) as raised:
        database[name].watch()
    assert raised.value.code == code


def test_batches(placed: Documents) -> None:
    command = {"aggregate": placed.name, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    with placed.database.client.start_session() as session:
        opened = placed.database.command(command, session=session)["cursor"]
        insert(placed, *BOTH)
        more = {"getMore": opened["id"], "collection": placed.name, "batchSize": 2, "maxTimeMS": 5000}
        found: list[Document] = []
        while len(found) < len(BOTH):
            cursor = placed.database.command(more, session=session)["cursor"]
            assert 0 < len(cursor["nextBatch"]) <= 2
            found += cursor["nextBatch"]
            assert cursor["postBatchResumeToken"]["_data"] >= found[-1]["_id"]["_data"]
        assert brief(found) == [("insert", key) for key in BOTH]
        placed.database.command("killCursors", placed.name, cursors=[opened["id"]])


def test_an_event_waits_for_no_idle_shard(placed: Documents) -> None:
    with placed.watch(max_await_time_ms=10_000) as stream:
        insert(placed, 1)
        take(stream, 1)
        started = time.monotonic()
        insert(placed, 2)
        take(stream, 1)
        assert time.monotonic() - started < 5, "far less than the ten seconds between a mongod's own no-ops"


def test_no_more_noops_than_needed(cluster: RunningCluster, placed: Documents, lower_mongod: Client) -> None:
    with placed.watch(max_await_time_ms=1500) as stream:
        stream.try_next()
        noops = {"op": "n", "o.msg": "a change stream waits for this time", "ts": {"$gt": _now(lower_mongod)}}
        assert stream.try_next() is None
        assert lower_mongod.local["oplog.rs"].count_documents(noops) == 0


def _now(client: Client) -> Timestamp:
    time: Timestamp = client.admin.command("ping")["operationTime"]
    return time


def test_a_restarted_router(cluster: RunningCluster, placed: Documents) -> None:
    with extra_router(cluster) as (address, process), client_of(address) as client:
        with client[placed.database.name][placed.name].watch(max_await_time_ms=500) as stream:
            insert(placed, *BOTH)
            events = take(stream, 2)
            token = stream.resume_token
        process.kill()
        process.wait()
    assert brief(events) == [("insert", key) for key in BOTH[:2]]
    with placed.watch(resume_after=token, max_await_time_ms=500) as resumed:
        assert brief(take(resumed, 3)) == [("insert", key) for key in BOTH[2:]]


def test_chunks_that_move_all_away(client: Client, placed: Documents) -> None:
    client.admin.command(
        "moveChunk", placed.full_name, bounds=[{"key": SPLIT_AT}, {"key": MaxKey()}], to=LOWER, _waitForDelete=True
    )
    with placed.watch(max_await_time_ms=500) as stream:
        insert(placed, *BOTH)
        assert brief(take(stream, len(BOTH))) == [("insert", key) for key in BOTH]
