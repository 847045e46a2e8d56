"""Logical sessions: what a router knows of them, writes down, and ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.local_cluster import Client, RunningCluster


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
    assert document.keys() == {"_id", "lastUse"}
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


def test_cursors_of_living_sessions_stay(raw: RawClient, ranged: Documents) -> None:
    lsid = new_session()
    with cursor_in(raw, ranged, lsid) as get_more:
        refresh(raw)
        refresh(raw)  # by now the session has not been used since the last refresh
        ok(raw.command(get_more, db=ranged.database.name))


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


def test_list_sessions_is_for_the_collection_of_sessions(client: Client) -> None:
    with pytest.raises(OperationFailure) as caught:
        list(client.config.other.aggregate([{"$listSessions": {}}]))
    assert caught.value.code == 73
