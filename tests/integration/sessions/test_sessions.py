"""Logical sessions of a router: its cache, its refreshes of the sessions collection, and their end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from shardwright.sharding.logical_sessions import NAMESPACE
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import extra_router
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster


@pytest.fixture
def raw(cluster: RunningCluster) -> Iterator[RawClient]:
    """A connection to the first router."""
    with raw_client(cluster.address("router.0")) as connection:
        yield connection


@pytest.fixture
def other(cluster: RunningCluster) -> Iterator[RawClient]:
    """A connection to the second router."""
    with raw_client(cluster.address("router.1")) as connection:
        yield connection


def new_session() -> Document:
    """An ``lsid``."""
    return {"id": Binary.from_uuid(uuid4())}


def ok(reply: Document) -> Document:
    """The reply to a command that has to succeed."""
    assert reply["ok"] == 1, reply
    return reply


def refresh(router: RawClient) -> None:
    """Have a router write its sessions."""
    ok(router.command({"refreshLogicalSessionCacheNow": 1}))


def stored(client: Client, lsid: Document) -> Document | None:
    """The document of a session."""
    return client.config["system.sessions"].find_one({"_id.id": lsid["id"]})


def local(router: RawClient) -> dict[bytes, Document]:
    """The sessions in use on a router, by their UUIDs."""
    listing = {"aggregate": 1, "pipeline": [{"$listLocalSessions": {}}], "cursor": {"batchSize": 100_000}}
    return {bytes(each["_id"]["id"]): each for each in ok(router.command(listing))["cursor"]["firstBatch"]}


@contextmanager
def cursor_in(router: RawClient, collection: Documents, lsid: Document) -> Iterator[Document]:
    """The ``getMore`` for a cursor of a session."""
    collection.insert_many({"_id": n, "key": n} for n in range(10))
    find = {"find": collection.name, "batchSize": 2, "lsid": lsid}
    opened = ok(router.command(find, db=collection.database.name))["cursor"]["id"]
    yield {"getMore": Int64(opened), "collection": collection.name, "lsid": lsid}


def test_used_sessions_are_listed_and_written(raw: RawClient, client: Client, ranged: Documents) -> None:
    lsid = new_session()
    ok(raw.command({"find": ranged.name, "lsid": lsid}, db=ranged.database.name))
    assert isinstance(local(raw)[bytes(lsid["id"])]["lastUse"], datetime)
    refresh(raw)
    document = stored(client, lsid)
    assert document is not None
    assert document.keys() - {"user"} == {"_id", "lastUse"}  # with access control it has its user's name
    assert document["_id"].keys() == {"id", "uid"}
    assert bytes(lsid["id"]) not in local(raw)  # it is again with its next use
    listed = client.config["system.sessions"].aggregate([{"$listSessions": {"allUsers": True}}])
    assert UUID(bytes=bytes(lsid["id"])) in {each["_id"]["id"].as_uuid() for each in listed}


def test_the_collection_of_sessions_is_sharded_and_expires_them(
    cluster: RunningCluster, raw: RawClient, client: Client, lower_mongod: Client
) -> None:
    refresh(raw)
    entry = client.config.collections.find_one({"_id": "config.system.sessions"})
    assert entry is not None
    assert entry["key"] == {"_id": 1}
    assert client.config.chunks.distinct("shard", {"uuid": entry["uuid"]}) == ["shard0"]
    for server in (client, lower_mongod):
        indexes = server.config["system.sessions"].index_information()
        assert indexes["lsidTTLIndex"]["expireAfterSeconds"] == 1800
    lsid = new_session()
    ok(raw.command({"refreshSessions": [lsid]}))
    refresh(raw)
    assert stored(lower_mongod, lsid)
    with cluster.direct("config.0.configd") as config_server:
        assert config_server.admin.command("refreshLogicalSessionCacheNow")["ok"] == 1  # once more


def test_the_collection_of_sessions_can_move(
    raw: RawClient, client: Client, lower_mongod: Client, upper_mongod: Client
) -> None:
    for shard, mongod in ((UPPER, upper_mongod), (LOWER, lower_mongod)):
        refresh(raw)
        move = {"moveChunk": "config.system.sessions", "bounds": [{"_id": MinKey()}, {"_id": MaxKey()}], "to": shard}
        client.admin.command(move | {"_waitForDelete": True})
        lsid = new_session()
        ok(raw.command({"refreshSessions": [lsid]}))
        refresh(raw)
        assert stored(client, lsid)
        assert stored(mongod, lsid)


def test_a_session_is_begun_refreshed_and_ended(raw: RawClient, client: Client) -> None:
    begun = ok(raw.command({"startSession": 1}))["id"]
    refreshed = new_session()
    ok(raw.command({"refreshSessions": [refreshed]}))
    assert {bytes(begun["id"]), bytes(refreshed["id"])} <= local(raw).keys()
    refresh(raw)
    assert stored(client, begun)
    assert stored(client, refreshed)
    ok(raw.command({"endSessions": [{"id": begun["id"]}]}))
    refresh(raw)
    assert stored(client, begun) is None
    assert stored(client, refreshed)


def test_writes_of_a_session_at_once_are_ordered_by_their_numbers(
    raw: RawClient, other: RawClient, ranged: Documents
) -> None:
    """As on one mongod, which checks the session out for each of them: the older one is first, or refused."""
    lsid, done = new_session(), 0
    ranged.insert_one({"_id": 1, "key": 1, "n": 0})
    increment = {"update": ranged.name, "updates": [{"q": {"key": 1}, "u": {"$inc": {"n": 1}}}], "lsid": lsid}
    for number in range(2, 200, 2):
        other.send_command(increment | {"txnNumber": Int64(number - 1)}, db=ranged.database.name)
        raw.send_command(increment | {"txnNumber": Int64(number)}, db=ranged.database.name)
        older, newer = other.receive_reply(), raw.receive_reply()
        assert ok(newer)["nModified"] == 1
        assert older.get("code") == 225 or ok(older)["nModified"] == 1, older
        done += 1 + int(older["ok"])
    assert ranged.find_one({"key": 1}) == {"_id": 1, "key": 1, "n": done}


def test_commands_that_need_no_user_use_no_session(raw: RawClient) -> None:
    lsid = new_session()
    for command in ("ping", "hello", "buildInfo"):
        ok(raw.command({command: 1, "lsid": lsid}))
    assert bytes(lsid["id"]) not in local(raw)


def test_cursors_end_with_their_session(raw: RawClient, ranged: Documents) -> None:
    lsid = new_session()
    with cursor_in(raw, ranged, lsid) as get_more:
        ok(raw.command({"endSessions": [lsid]}))
        assert raw.command(get_more, db=ranged.database.name)["codeName"] == "CursorNotFound"


def test_cursors_end_if_another_router_has_ended_the_session(
    raw: RawClient, other: RawClient, ranged: Documents
) -> None:
    lsid = new_session()
    with cursor_in(raw, ranged, lsid) as get_more:
        refresh(raw)
        ok(other.command({"endSessions": [lsid]}))
        refresh(other)
        refresh(raw)
        assert raw.command(get_more, db=ranged.database.name)["codeName"] == "CursorNotFound"


def begin_transaction(router: RawClient, collection: Documents, lsid: Document) -> Document:
    """Insert a document on each shard in a transaction; returns its fields."""
    fields = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False}
    insert = {"insert": collection.name, "documents": [{"_id": key, "key": key} for key in (1, 1000)]}
    ok(router.command(insert | fields | {"startTransaction": True}, db=collection.database.name))
    return fields


def assert_aborted(router: RawClient, collection: Documents, transaction: Document) -> None:
    """Check that a transaction is over, and that no shard has kept its locks."""
    assert router.command({"commitTransaction": 1} | transaction)["codeName"] == "NoSuchTransaction"
    again = {"insert": collection.name, "documents": [{"_id": key, "key": key} for key in (1, 1000)], "maxTimeMS": 9000}
    assert ok(router.command(again, db=collection.database.name))["n"] == 2


def test_a_transaction_ends_with_its_session(raw: RawClient, ranged: Documents) -> None:
    """A plain mongod and mongos keep it, with its locks, until its lifetime is over."""
    lsid, living = new_session(), new_session()
    transaction = begin_transaction(raw, ranged, lsid)
    ok(raw.command({"endSessions": [living]}))
    find = {"find": ranged.name, "filter": {"key": 1}}
    assert len(ok(raw.command(find | transaction, db=ranged.database.name))["cursor"]["firstBatch"]) == 1
    ok(raw.command({"endSessions": [lsid]}))
    assert_aborted(raw, ranged, transaction)


def test_a_transaction_ends_if_another_router_has_ended_the_session(
    raw: RawClient, other: RawClient, ranged: Documents
) -> None:
    lsid = new_session()
    transaction = begin_transaction(raw, ranged, lsid)
    refresh(raw)
    ok(other.command({"endSessions": [lsid]}))
    refresh(other)
    refresh(raw)
    assert_aborted(raw, ranged, transaction)


def test_a_transaction_of_a_living_session_stays(raw: RawClient, ranged: Documents) -> None:
    transaction = begin_transaction(raw, ranged, new_session())
    refresh(raw)
    refresh(raw)  # by now the session has not been used since the last refresh
    ok(raw.command({"commitTransaction": 1} | transaction))
    assert ranged.count_documents({}) == 2


def test_cursors_of_living_sessions_stay(raw: RawClient, ranged: Documents) -> None:
    lsid = new_session()
    with cursor_in(raw, ranged, lsid) as get_more:
        refresh(raw)
        refresh(raw)  # by now the session has not been used since the last refresh
        ok(raw.command(get_more, db=ranged.database.name))


def test_shards_keep_the_sessions_of_cursors_that_read_elsewhere(
    raw: RawClient, ranged: Documents, upper_mongod: Client
) -> None:
    """Or their mongods would kill the cursor before its turn comes."""
    ranged.insert_many({"_id": key, "key": key} for key in (*range(10), *range(600, 610)))
    lsid = new_session()
    find = {"find": ranged.name, "sort": {"key": 1}, "batchSize": 2, "lsid": lsid}
    opened = ok(raw.command(find, db=ranged.database.name))["cursor"]["id"]
    refresh(raw)
    first = stored(upper_mongod, lsid)
    assert first is not None
    get_more = {"getMore": Int64(opened), "collection": ranged.name, "batchSize": 2, "lsid": lsid}
    ok(raw.command(get_more, db=ranged.database.name))  # of the lower shard alone
    refresh(raw)
    again = stored(upper_mongod, lsid)
    assert again is not None
    assert again["lastUse"] > first["lastUse"]


def test_an_operation_keeps_its_session_as_long_as_it_runs(raw: RawClient, placed: Documents) -> None:
    placed.insert_one({"_id": 600, "key": 600})
    lsid, client = new_session(), placed.database.client
    slow = {"find": placed.name, "filter": {"$where": "sleep(4000) || true"}, "lsid": lsid}
    raw.send_command(slow, db=placed.database.name)
    try:
        with raw_client("{}:{}".format(*client.address or ())) as same_router:
            eventually(lambda: bytes(lsid["id"]) in local(same_router), what="the operation has begun")
            refresh(same_router)
            first = stored(client, lsid)
            refresh(same_router)
            again = stored(client, lsid)
            assert first is not None
            assert again is not None
            assert again["lastUse"] > first["lastUse"]
    finally:
        assert len(ok(raw.receive_reply())["cursor"]["firstBatch"]) == 1


def test_the_state_of_the_cache_is_shown(raw: RawClient) -> None:
    refresh(raw)
    ok(raw.command({"refreshSessions": [new_session()]}))
    before = raw.command({"serverStatus": 1})["logicalSessionRecordCache"]
    assert before["activeSessionsCount"] >= 1
    refresh(raw)
    after = raw.command({"serverStatus": 1})["logicalSessionRecordCache"]
    assert after["sessionsCollectionJobCount"] > before["sessionsCollectionJobCount"]
    assert after["lastSessionsCollectionJobEntriesRefreshed"] >= 1


def test_parameters_of_sessions(client: Client) -> None:
    names = ("localLogicalSessionTimeoutMinutes", "logicalSessionRefreshMillis", "maxSessions")
    found = client.admin.command({"getParameter": 1} | dict.fromkeys(names, 1))
    assert [found[name] for name in names] == [30, 300_000, 1_000_000]


def test_sessions_are_refreshed_by_themselves(cluster: RunningCluster, client: Client, ranged: Documents) -> None:
    lsid = new_session()
    interval = ("--set-parameter", "logicalSessionRefreshMillis=200")
    with extra_router(cluster, *interval) as (address, _), raw_client(address) as router:
        ok(router.command({"find": ranged.name, "lsid": lsid}, db=ranged.database.name))
        eventually(lambda: stored(client, lsid), what="the session is written")


def test_a_session_that_begins_during_a_refresh_keeps_its_cursor(
    cluster: RunningCluster,
    raw: RawClient,
    client: Client,
    ranged: Documents,
    lower_mongod: Client,
    upper_mongod: Client,
) -> None:
    refresh(raw)
    entry = client.config.collections.find_one({"_id": "config.system.sessions"})
    assert entry is not None
    (shard,) = client.config.chunks.distinct("shard", {"uuid": entry["uuid"]})
    mongod = lower_mongod if shard == LOWER else upper_mongod
    slow: Document = {"failCommands": ["update"], "namespace": "config.system.sessions", "failInternalCommands": True}
    ok(raw.command({"refreshSessions": [new_session()]}))
    with ThreadPoolExecutor() as pool, raw_client(cluster.address("router.0")) as early, ExitStack() as stack:
        point = stack.enter_context(fail_point(mongod, "failCommand", **slow, blockConnection=True, blockTimeMS=2_000))
        refreshing = pool.submit(refresh, early)
        point.wait_entered()
        with cursor_in(raw, ranged, new_session()) as get_more, raw_client(cluster.address("router.0")) as late:
            also_refreshing = pool.submit(refresh, late)
            refreshing.result(60)
            also_refreshing.result(60)
            ok(raw.command(get_more, db=ranged.database.name))


def test_the_timeout_of_sessions_is_told(cluster: RunningCluster) -> None:
    timeout = ("--set-parameter", "localLogicalSessionTimeoutMinutes=7")
    with extra_router(cluster, *timeout) as (address, _), raw_client(address) as router:
        assert ok(router.command({"hello": 1}))["logicalSessionTimeoutMinutes"] == 7
        assert ok(router.command({"startSession": 1}))["timeoutMinutes"] == 7


@pytest.mark.exhaustive
def test_the_timeout_of_sessions_in_a_whole_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--set-parameter", "localLogicalSessionTimeoutMinutes=7") as cluster:
        names = ("router.0", "shard0.0.shardd", "shard1.0.shardd", "config.0.configd")
        for name in names:
            with cluster.direct(name) as server:
                assert server.admin.command("hello")["logicalSessionTimeoutMinutes"] == 7
        with cluster.client() as client:
            client.admin.command("refreshLogicalSessionCacheNow")
            assert client.config["system.sessions"].index_information()["lsidTTLIndex"]["expireAfterSeconds"] == 7 * 60


def test_list_sessions_is_for_the_collection_of_sessions(client: Client) -> None:
    with pytest.raises(OperationFailure) as caught:
        list(client.config.other.aggregate([{"$listSessions": {}}]))
    assert caught.value.code == 73


@contextmanager
def used_on_the_other_shard(cluster: RunningCluster, raw: RawClient) -> Iterator[tuple[Document, RawClient, int]]:
    """A new session, the mongod of a shard that does not own its document, and a key that this shard owns."""
    refresh(raw)
    with cluster.client() as client:
        [collection] = client.config.collections.find({"_id": NAMESPACE})
        [chunk] = client.config.chunks.find({"uuid": collection["uuid"]})
    name, key = ("shard1.0.mongod", 600) if chunk["shard"] == LOWER else ("shard0.0.mongod", 100)
    with raw_client(cluster.address(name)) as mongod:
        yield new_session(), mongod, key


def forget(mongod: RawClient, lsid: Document) -> None:
    """Delete the document of a session from the mongod's own collection, as a range deletion or its TTL does."""
    delete = {"delete": "system.sessions", "deletes": [{"q": {"_id.id": lsid["id"]}, "limit": 1}]}
    assert ok(mongod.command(delete, db="config"))["n"] == 1


def test_an_idle_cursor_survives_the_range_deletion_of_its_session(
    cluster: RunningCluster, raw: RawClient, other: RawClient, ranged: Documents
) -> None:
    with used_on_the_other_shard(cluster, raw) as (lsid, mongod, key):
        ranged.insert_many({"_id": n, "key": key + n} for n in range(10))
        find = {"find": ranged.name, "filter": {"key": {"$gte": key, "$lt": key + 10}}, "batchSize": 2, "lsid": lsid}
        opened = ok(raw.command(find, db=ranged.database.name))["cursor"]["id"]
        refresh(raw)
        for _ in range(2):
            forget(mongod, lsid)
            refresh(other)
        get_more = {"getMore": Int64(opened), "collection": ranged.name, "lsid": lsid}
        assert len(ok(raw.command(get_more, db=ranged.database.name))["cursor"]["nextBatch"]) == 8
        ok(raw.command({"endSessions": [lsid]}))


def test_a_write_is_remembered_while_its_session_lives_elsewhere(
    cluster: RunningCluster, raw: RawClient, other: RawClient, ranged: Documents
) -> None:
    """For half an hour it is used on other shards only."""
    with used_on_the_other_shard(cluster, raw) as (lsid, mongod, key):
        ranged.insert_one({"_id": 1, "key": key, "n": 0})
        updates = [{"q": {"key": key}, "u": {"$inc": {"n": 1}}}]
        increment = {"update": ranged.name, "updates": updates, "lsid": lsid, "txnNumber": Int64(1)}
        ok(raw.command(increment, db=ranged.database.name))
        refresh(raw)
        forget(mongod, lsid)
        long_ago = {"$set": {"lastWriteDate": datetime.now(UTC) - timedelta(hours=1)}}
        update = {"update": "transactions", "updates": [{"q": {"_id.id": lsid["id"]}, "u": long_ago}]}
        assert ok(mongod.command(update, db="config"))["nModified"] == 1
        refresh(other)
        ok(mongod.command({"reapLogicalSessionCacheNow": 1}))
        assert ok(raw.command(increment, db=ranged.database.name))["retriedStmtIds"] == [0]
        assert ranged.find_one({"_id": 1}, {"_id": 0, "n": 1}) == {"n": 1}
