"""Cursors over two shards: batches, closing, sessions, time limits and the underlying cursors of the shards."""

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64
from pymongo import CursorType
from pymongo.database import Database
from pymongo.errors import CursorNotFound, OperationFailure
from pymongo.server_api import ServerApi

from tests.integration.health import sample
from tests.integration.raw_client import raw_client
from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.server_parameters import server_parameter

COUNT = 1000
CURSOR_NOT_FOUND = 43


@pytest.fixture
def filled(placed: Documents) -> Documents:
    """Documents with keys from 0 to `COUNT`, half of them on each shard, and no cursor of another test."""
    placed.insert_many({"_id": n, "key": n, "group": n % 7} for n in range(COUNT))
    return placed


@pytest.fixture
def cursor_timeout_ms(client: Client) -> Iterator[int]:
    """Cursors of the first router are closed after being idle for a tenth of a second, in sessions too."""
    timeout = 100
    with (
        server_parameter(client, "cursorTimeoutMillis", timeout),
        server_parameter(client, "enableTimeoutOfInactiveSessionCursors", 1),
    ):
        yield timeout


def open_cursors(client: Client) -> int:
    """The number of open cursors on a router or mongod."""
    return int(client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"])


def namespace_cursors(mongod: Client, collection: Documents) -> list[Document]:
    """Idle cursors of a mongod on one collection."""
    stages: list[Document] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"ns": collection.full_name, "type": "idleCursor"}},
    ]
    return list(mongod.admin.aggregate(stages))


def assert_no_cursors(lower_mongod: Client, upper_mongod: Client, collection: Documents) -> None:
    """Wait until no cursor is left on either shard."""
    for mongod in (lower_mongod, upper_mongod):
        eventually(partial(_has_no_cursors, mongod, collection), what="no cursor is left on the shard")


def _has_no_cursors(mongod: Client, collection: Documents) -> bool:
    return not namespace_cursors(mongod, collection)


def test_a_join_with_a_limit_leaves_no_cursor(filled: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    """The limit is more than a first batch, and less than the shards have."""
    lookup = {"from": filled.name, "pipeline": [{"$limit": 300}], "as": "some"}
    stages: list[Document] = [{"$match": {"key": 1}}, {"$lookup": lookup}, {"$project": {"count": {"$size": "$some"}}}]
    assert [each["count"] for each in filled.aggregate(stages)] == [300]
    assert_no_cursors(lower_mongod, upper_mongod, filled)


def test_first_batch_has_101_documents_by_default(filled: Documents) -> None:
    reply = filled.database.command("find", filled.name, sort={"key": 1})
    assert [document["key"] for document in reply["cursor"]["firstBatch"]] == list(range(101))
    assert reply["cursor"]["ns"] == filled.full_name
    rest = filled.database.command("getMore", Int64(reply["cursor"]["id"]), collection=filled.name)
    assert rest["cursor"]["id"] == 0
    assert [document["key"] for document in rest["cursor"]["nextBatch"]] == list(range(101, COUNT))


def test_empty_first_batch_then_batches_of_a_size(filled: Documents) -> None:
    reply = filled.database.command("find", filled.name, sort={"key": -1}, batchSize=0)
    assert reply["cursor"]["firstBatch"] == []
    more = filled.database.command("getMore", Int64(reply["cursor"]["id"]), collection=filled.name, batchSize=3)
    assert [document["key"] for document in more["cursor"]["nextBatch"]] == [999, 998, 997]
    filled.database.command("killCursors", filled.name, cursors=[Int64(reply["cursor"]["id"])])


def test_single_batch_leaves_no_cursor(filled: Documents) -> None:
    reply = filled.database.command("find", filled.name, batchSize=10, singleBatch=True)
    assert reply["cursor"]["id"] == 0
    assert len(reply["cursor"]["firstBatch"]) == 10


def test_limit_closes_the_cursor_and_those_of_the_shards(
    filled: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    found = filled.find().sort("key", -1).limit(250).batch_size(100)
    assert [document["key"] for document in found] == list(range(999, 749, -1))
    assert_no_cursors(lower_mongod, upper_mongod, filled)


@pytest.mark.parametrize("filtered", [{}, {"key": {"$lt": 400}}], ids=["both shards", "one shard"])
def test_kill_cursors(
    client: Client, filled: Documents, lower_mongod: Client, upper_mongod: Client, filtered: Document
) -> None:
    before = open_cursors(client)
    reply = filled.database.command("find", filled.name, filter=filtered, batchSize=10)
    cursor_id = Int64(reply["cursor"]["id"])
    assert open_cursors(client) == before + 1
    assert namespace_cursors(lower_mongod, filled)
    unknown = Int64(cursor_id ^ 1)
    killed = filled.database.command("killCursors", filled.name, cursors=[cursor_id, unknown, cursor_id])
    assert (killed["cursorsKilled"], killed["cursorsNotFound"]) == ([cursor_id], [unknown, cursor_id])
    assert (killed["cursorsAlive"], killed["cursorsUnknown"]) == ([], [])
    assert open_cursors(client) == before
    assert_no_cursors(lower_mongod, upper_mongod, filled)
    with pytest.raises(CursorNotFound):
        filled.database.command("getMore", cursor_id, collection=filled.name)


@pytest.mark.parametrize("filtered", [{}, {"key": {"$lt": 400}}], ids=["both shards", "one shard"])
def test_the_id_of_a_cursor_of_a_shard_is_not_shown(
    filtered: Document, filled: Documents, lower_mongod: Client
) -> None:
    """Not even if the shard does not have the cursor any more."""
    opened = filled.database.command("find", filled.name, filter=filtered, batchSize=10)["cursor"]
    for each in namespace_cursors(lower_mongod, filled):
        killing = {"killCursors": filled.name, "cursors": [each["cursor"]["cursorId"]]}
        lower_mongod[filled.database.name].command(killing)
    with pytest.raises(CursorNotFound) as caught:
        filled.database.command("getMore", Int64(opened["id"]), collection=filled.name, batchSize=300)
    assert caught.value.details is not None
    assert caught.value.details["errmsg"] == f"cursor id {opened['id']} not found"


def test_closing_a_client_cursor_kills_it(client: Client, filled: Documents) -> None:
    before = open_cursors(client)
    with filled.find().batch_size(5) as cursor:
        next(cursor)
        assert open_cursors(client) == before + 1
    assert open_cursors(client) == before


@pytest.mark.usefixtures("cursor_timeout_ms")
def test_idle_cursor_is_closed(client: Client, filled: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    timed_out = client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"]
    cursor = filled.find({}, no_cursor_timeout=False).batch_size(5)
    next(cursor)
    eventually(lambda: client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"] > timed_out)
    assert_no_cursors(lower_mongod, upper_mongod, filled)
    with pytest.raises(CursorNotFound):
        list(cursor)


@pytest.mark.usefixtures("cursor_timeout_ms")
def test_cursor_without_timeout_outlives_one_with(client: Client, filled: Documents) -> None:
    timed_out = client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"]
    with filled.find({}, no_cursor_timeout=True).batch_size(5) as immortal, filled.find().batch_size(5) as mortal:
        next(immortal), next(mortal)
        eventually(lambda: client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"] > timed_out)
        assert len(list(immortal)) == COUNT - 1


PROJECTION: Document = {"$project": {"key": 1}}
LONG_PIPELINES: dict[str, list[Document]] = {
    "merged by the router": [],
    "merged by a mongod": [{"$lookup": {"from": "other", "pipeline": [], "as": "other"}}, PROJECTION],
    "joined by the router": [
        {
            "$lookup": {
                "from": "ranged",
                "localField": "key",
                "foreignField": "key",
                "pipeline": [PROJECTION],
                "as": "same",
            }
        },
        PROJECTION,
    ],
}


@pytest.mark.parametrize("case", LONG_PIPELINES)
def test_a_shard_keeps_a_cursor_of_a_session_until_its_turn_comes(
    cluster: RunningCluster, ranged: Documents, upper_mongod: Client, case: str
) -> None:
    """A mongod ends other cursors that have been idle for ten minutes."""
    ranged.insert_many({"_id": key, "key": key} for key in range(10))
    ranged.insert_many({"_id": key, "key": key, "padding": "x" * 900_000} for key in range(600, 620))
    ranged.database.other.insert_one({})
    pipeline = [{"$sort": {"key": 1}}, *LONG_PIPELINES[case]]
    with (
        server_parameter(upper_mongod, "clientCursorMonitorFrequencySecs", 1),
        server_parameter(upper_mongod, "cursorTimeoutMillis", 500),
        ranged.aggregate(pipeline, batchSize=2) as found,
        raw_client(cluster.address("shard1.0.mongod")) as without_session,
    ):
        keys = [next(found)["key"]]
        find = {"find": ranged.name, "batchSize": 1, "projection": {"_id": 1}}
        idle = without_session.command(find, db=ranged.database.name)["cursor"]["id"]
        eventually(lambda: idle not in idle_cursor_ids(upper_mongod, ranged), what="the other cursor is ended")
        keys += [document["key"] for document in found]
    assert keys == [*range(10), *range(600, 620)]


def test_a_router_keeps_what_a_mongod_is_to_read_from_it(
    cluster: RunningCluster, client: Client, ranged: Documents
) -> None:
    """The mongod that executes the stages behind a join takes the joined documents from the router by a cursor."""
    ranged.insert_many({"_id": key, "key": key, "padding": "x" * 900_000} for key in range(490, 515))
    join = {"from": "ranged", "localField": "key", "foreignField": "key", "pipeline": [PROJECTION], "as": "same"}
    pipeline: list[Document] = [{"$lookup": join}, {"$limit": 1000}]
    with (
        server_parameter(client, "cursorTimeoutMillis", 100),
        ranged.aggregate(pipeline, batchSize=2) as found,
        raw_client(cluster.address("router.0")) as without_session,
    ):
        keys = [next(found)["key"]]
        timed_out = client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"]
        without_session.command({"find": ranged.name, "batchSize": 1}, db=ranged.database.name)
        eventually(lambda: client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"] > timed_out)
        keys += [document["key"] for document in found]
    assert sorted(keys) == list(range(490, 515))


def idle_cursor_ids(mongod: Client, collection: Documents) -> set[int]:
    """The ids of idle cursors of a mongod on one collection."""
    return {int(each["cursor"]["cursorId"]) for each in namespace_cursors(mongod, collection)}


def test_cursor_belongs_to_its_session(client: Client, filled: Documents) -> None:
    with client.start_session() as session, client.start_session() as other:
        reply = filled.database.command("find", filled.name, batchSize=2, session=session)
        cursor_id = Int64(reply["cursor"]["id"])
        with pytest.raises(OperationFailure) as caught:
            filled.database.command("getMore", cursor_id, collection=filled.name, session=other)
        assert caught.value.code == 50801
        more = filled.database.command("getMore", cursor_id, collection=filled.name, session=session)
        assert more["cursor"]["nextBatch"]
        filled.database.command("killCursors", filled.name, cursors=[cursor_id], session=session)


@pytest.mark.parametrize("process", ["router.0", "shard0.0.mongod"])
def test_cursor_outlives_its_connection(cluster: RunningCluster, filled: Documents, process: str) -> None:
    """As on a mongod, where sessions are independent of connections. When it ends, so does a router's cursor."""
    session = {"id": Binary(uuid4().bytes, UUID_SUBTYPE)}
    db, is_router = filled.database.name, process == "router.0"
    with raw_client(cluster.address(process)) as leaving:
        find = {"find": filled.name, "batchSize": 2, "lsid": session}
        cursor_id = Int64(leaving.command(find, db=db)["cursor"]["id"])
    if is_router:
        metrics, left = cluster.metrics[process], "open_cursors_of_closed_connections"
        eventually(lambda: sample(metrics, left) == 1, what="the cursor counts as left")
    with raw_client(cluster.address(process)) as other:
        more = {"getMore": cursor_id, "collection": filled.name, "batchSize": 2, "lsid": session}
        assert len(other.command(more, db=db)["cursor"]["nextBatch"]) == 2
        if is_router:
            assert sample(metrics, left) == 0
            assert other.command({"endSessions": [session]})["ok"] == 1
            assert other.command(more, db=db)["code"] == CURSOR_NOT_FOUND
        else:
            other.command({"killCursors": filled.name, "cursors": [cursor_id], "lsid": session}, db=db)


def test_cursor_belongs_to_its_collection(filled: Documents) -> None:
    reply = filled.database.command("find", filled.name, batchSize=2)
    cursor_id = Int64(reply["cursor"]["id"])
    with pytest.raises(OperationFailure) as caught:
        filled.database.command("getMore", cursor_id, collection="another")
    assert caught.value.code == 13
    filled.database.command("killCursors", filled.name, cursors=[cursor_id])


def test_cursor_of_one_router_is_unknown_to_the_other(filled: Documents, other_client: Client) -> None:
    reply = filled.database.command("find", filled.name, batchSize=2)
    cursor_id = Int64(reply["cursor"]["id"])
    with pytest.raises(CursorNotFound):
        other_client[filled.database.name].command("getMore", cursor_id, collection=filled.name)
    filled.database.command("killCursors", filled.name, cursors=[cursor_id])


def test_tailable_cursor_of_an_unsharded_capped_collection(database: Database[Document]) -> None:
    capped = database.create_collection("capped", capped=True, size=4096)
    capped.insert_one({"n": 1})
    with capped.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(50) as cursor:
        assert cursor.next()["n"] == 1
        capped.insert_one({"n": 2})
        assert cursor.next()["n"] == 2
        assert cursor.alive


def test_documents_of_many_sizes_fit_the_batches(ranged: Documents) -> None:
    """A batch is limited to 16 MiB, wherever the documents come from."""
    large = "x" * (3 << 20)
    ranged.insert_many({"key": key, "text": large} for key in (1, 2, 3, 4, 501, 502, 503, 504))
    reply = ranged.database.command("find", ranged.name, sort={"key": 1})
    first = [document["key"] for document in reply["cursor"]["firstBatch"]]
    assert first == [1, 2, 3, 4, 501]
    assert [document["key"] for document in ranged.find().sort("key", 1)] == [1, 2, 3, 4, 501, 502, 503, 504]


def test_two_shards_and_a_router_serve_many_cursors_at_once(filled: Documents, cluster: RunningCluster) -> None:
    with cluster.client() as client:
        collection = client[filled.database.name][filled.name]
        cursors = [collection.find({"group": group}).sort("key", 1).batch_size(4) for group in range(7)]
        columns = [[cursor.next()["key"] for _ in range(100)] for cursor in cursors]
        for group, (keys, cursor) in enumerate(zip(columns, cursors, strict=True)):
            assert keys == list(range(group, 700, 7))
            cursor.close()


@pytest.mark.parametrize("strict", [False, True])
def test_batches_of_a_client_that_declares_an_api_version(
    cluster: RunningCluster, filled: Documents, strict: bool
) -> None:
    """Batches of one shard and of both, merged by the router and by a shard, and read by the router for a join."""
    with cluster.client(server_api=ServerApi("1", strict=strict)) as client:
        collection = client[filled.database.name][filled.name]
        assert len(list(collection.find(batch_size=10))) == COUNT
        assert len(list(collection.find({"key": {"$lt": 500}}, batch_size=10))) == 500
        assert len(list(collection.find(batch_size=10).sort("key", -1))) == COUNT
        assert len(list(collection.aggregate([{"$sort": {"_id": 1}}], batchSize=10))) == COUNT
        assert len(list(collection.aggregate([{"$group": {"_id": "$key"}}], batchSize=10))) == COUNT
        union = {"$unionWith": {"coll": collection.name, "pipeline": [{"$match": {"key": {"$gte": 0}}}]}}
        assert len(list(collection.aggregate([union], batchSize=10))) == 2 * COUNT
