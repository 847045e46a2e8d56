"""A shard added through one router receives the commands that another router sends to all shards."""

import json
from collections.abc import Iterator
from typing import Final

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.change_stream import ChangeStream
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import Document
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, client_of, running_cluster
from tests.shardd.mini_cluster import replica_set

DB = "added"
AUDIT: Final = "audit.json"


@pytest.fixture(scope="module")
def streams() -> Iterator[list[ChangeStream[Document]]]:
    """Change streams that are open while the shard is added."""
    found: list[ChangeStream[Document]] = []
    yield found
    for stream in found:
        stream.close()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, streams: list[ChangeStream[Document]]) -> Iterator[RunningCluster]:
    """A cluster of two shards to which ``third`` was added after the second router had read the list of shards.

    ``added.c``, sharded by ``k``, has documents on all three.
    """
    directory = tmp_path_factory.mktemp("cluster")
    audit = ("audit-destination=file", f"audit-path={directory / AUDIT}")
    options = ("--routers", "2", "--orphan-cleanup-delay", "0")
    with (
        running_cluster(directory, *options, *(f"--router-option={each}" for each in audit)) as cluster,
        replica_set(tmp_path_factory.mktemp("third")) as third,
        third.client() as alone,
        cluster.direct("router.0") as first,
        cluster.direct("router.1") as second,
    ):
        low, high = cluster.shards
        first.admin.command("enableSharding", DB, primaryShard=low)
        first.admin.command("shardCollection", f"{DB}.c", key={"k": 1})
        first.admin.command("split", f"{DB}.c", middle={"k": 0})
        first.admin.command("moveChunk", f"{DB}.c", bounds=[{"k": 0}, {"k": MaxKey()}], to=high)
        second[DB].c.insert_many([{"_id": k, "k": k} for k in range(-10, 10)])
        assert second[DB].c.update_many({}, {"$set": {"x": 0}}).modified_count == 20
        alone["found"].c.insert_one({})
        alone.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        streams += [second[DB].watch(max_await_time_ms=500), second[DB].watch(max_await_time_ms=500)]
        first.admin.command("addShard", third.connection_string, name="third")
        first.admin.command("moveChunk", f"{DB}.c", bounds=[{"k": MinKey()}, {"k": 0}], to="third")
        yield cluster


@pytest.mark.parametrize("is_resumed", [False, True])
def test_open_change_streams_have_its_events(
    grown: RunningCluster, streams: list[ChangeStream[Document]], is_resumed: bool
) -> None:
    keys = range(-30, -20)
    stream = streams[is_resumed]
    with grown.direct("router.0") as client, grown.direct("router.1") as other:
        client[DB].c.insert_many([{"_id": k, "k": k} for k in keys])
        client[DB].c.insert_many([{"_id": -k, "k": -k} for k in keys])
        if is_resumed:
            stream = other[DB].watch(resume_after=stream.resume_token, max_await_time_ms=500)
        expected = {*keys, *(-k for k in keys)}
        found: list[int] = []

        def complete() -> bool:
            event = stream.try_next()
            if event is not None and event["operationType"] == "insert":
                found.append(event["documentKey"]["_id"])
            return len(found) >= len(expected)

        eventually(complete, what="all events")
        stream.close()
        client[DB].c.delete_many({"_id": {"$in": sorted(expected)}})
    assert sorted(found) == sorted(expected)


def test_multi_writes_reach_it(grown: RunningCluster) -> None:
    with grown.direct("router.1") as client:
        updated = client[DB].c.update_many({}, {"$inc": {"x": 1}})
        assert (updated.matched_count, updated.modified_count) == (20, 20)
        assert {document["x"] for document in client[DB].c.find()} == {1}


def test_databases_on_the_added_shard_are_listed(grown: RunningCluster) -> None:
    with grown.direct("router.1") as client:
        assert "found" in client.list_database_names()


def test_the_shard_map_contains_it(grown: RunningCluster) -> None:
    with grown.direct("router.1") as client:
        assert client.admin.command("getShardMap")["map"].keys() == {"config", "third", *grown.shards}


def test_it_leaves_and_comes_back(grown: RunningCluster) -> None:
    """The last test, which one router begins and the other one ends; what the shard still has must not confuse it."""
    with grown.direct("router.0") as first, grown.direct("router.1") as second:
        entry = first.config.shards.find_one({"_id": "third"})
        assert entry is not None
        host = entry["host"]
        expected = list(second[DB].c.find(sort={"k": 1}))

        def add(name: str) -> str | int | None:
            try:
                return str(second.admin.command("addShard", host, name=name)["shardAdded"])
            except OperationFailure as failure:
                return failure.code

        assert first.admin.command("removeShard", "third")["state"] == "started"
        left = second.admin.command("removeShard", "third")
        assert (left["state"], left["remaining"]["chunks"], left["dbsToMove"]) == ("ongoing", 1, ["found"])
        first.admin.command("moveChunk", f"{DB}.c", bounds=[{"k": MinKey()}, {"k": 0}], to="shard0")
        second.drop_database("found")
        assert first.admin.command("removeShard", "third")["state"] == "completed"
        assert list(second[DB].c.find(sort={"k": 1})) == expected

        assert add("third") == ErrorCode.OperationFailed, "it still has the database"
        with client_of(host.partition("/")[2]) as alone:
            alone.drop_database(DB)
        assert add("another") == ErrorCode.IllegalOperation, "it stays the shard that it was"
        assert add("third") == "third"
        first.admin.command("moveChunk", f"{DB}.c", bounds=[{"k": MinKey()}, {"k": 0}], to="third")
        second[DB].c.insert_one({"_id": -11, "k": -11, "x": 1})
        assert list(first[DB].c.find(sort={"k": 1})) == [{"_id": -11, "k": -11, "x": 1}, *expected]
    events = [json.loads(line) for line in (grown.directory / AUDIT).read_text().splitlines()]
    told = [(each["atype"], each["result"], each["param"]) for each in events if each["atype"].endswith("Shard")]
    assert told[len(grown.shards) :] == [
        ("addShard", 0, {"shard": "third", "connectionString": host}),
        *[("removeShard", 0, {"shard": "third"})] * 3,
        ("addShard", ErrorCode.OperationFailed, {"shard": "third", "connectionString": host}),
        ("addShard", ErrorCode.IllegalOperation, {"shard": "another", "connectionString": host}),
        ("addShard", 0, {"shard": "third", "connectionString": host}),
    ]
