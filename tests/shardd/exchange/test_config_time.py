"""A shard never reads a catalog older than the one that it, its former primary or a router has seen.

A config server whose majority commit point does not advance answers like a newly elected one, which does not yet know
the committed state.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from bson.timestamp import Timestamp

from shardwright.wire.error_codes import ErrorCode
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Client, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


@contextmanager
def lagging_config(mini: MiniCluster) -> Iterator[Client]:
    """During the block, majority reads of the config server show the state at its beginning."""
    with mini.config.members[0].mongod_client() as mongod:
        point = {"configureFailPoint": "disableSnapshotting"}
        mongod.admin.command({**point, "mode": "alwaysOn"})
        try:
            yield mongod
        finally:
            mongod.admin.command({**point, "mode": "off"})
            mongod.admin.command({"appendOplogNote": 1, "data": {"msg": "on it goes"}, "writeConcern": {"w": 1}})


def raise_version(config: Client, sharded: ShardedNamespace) -> Timestamp:
    """Give all chunks of the collection a higher version, which no majority has; returns the time of the write."""
    highest = max(chunk["lastmod"] for chunk in sharded.chunks())
    for minor, chunk in enumerate(sharded.chunks()):
        change = {"q": {"_id": chunk["_id"]}, "u": {"$set": {"lastmod": Timestamp(highest.time + 1, minor)}}}
        reply = config.config.command({"update": "chunks", "updates": [{**change}], "writeConcern": {"w": 1}})
    time = reply["operationTime"]
    assert isinstance(time, Timestamp)
    return time


def is_read_waiting(config: Client, time: Timestamp) -> bool:
    """Whether a read of the catalog waits until the majority has reached a time."""
    waiting = {"command.readConcern.afterClusterTime": {"$gte": time}}
    return any(config.admin.aggregate([{"$currentOp": {}}, {"$match": waiting}]))


def persisted_time(mini: MiniCluster, shard: str) -> Timestamp:
    with mini.shards[shard].members[0].mongod_client() as mongod:
        state = mongod.config.vectorClock.find_one({"_id": "vectorClockState"})
    assert state is not None
    time = state["configTime"]
    assert isinstance(time, Timestamp)
    return time


def reply_after_lag(mini: MiniCluster, sharded: ShardedNamespace, command: Mapping[str, Any], *, told: bool) -> Any:  # noqa: ANN401 - a reply
    """Return a shard's reply while the config server lags behind the time of the shard, or of the router."""
    old = sharded.version()
    with ThreadPoolExecutor(1) as pool:
        with lagging_config(mini) as config:
            time = raise_version(config, sharded)
            if told:
                version, gossip = sharded.version(), {"$configTime": time}
            else:
                version, gossip = old, {}
                with mini.shards["sh0"].members[0].mongod_client() as mongod:
                    state = {"$max": {"configTime": time, "topologyTime": Timestamp(0, 1)}}
                    mongod.config.vectorClock.update_one({"_id": "vectorClockState"}, state, upsert=True)
                member = mini.shards["sh0"].members[0]
                member.restart(member.daemon)
            answer = pool.submit(sharded.run, {**command, **gossip, "shardVersion": version})
            eventually(lambda: answer.done() or is_read_waiting(config, time), within=30, what="it waits")
            assert not answer.done(), answer.result()
        return answer.result(30)


def test_a_shard_reads_up_to_what_the_router_knows(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": 1}, "sh0")
    sharded.insert({"_id": 1, "a": 1})
    reply = reply_after_lag(mini, sharded, {"find": "c"}, told=True)
    assert reply["cursor"]["firstBatch"] == [{"_id": 1, "a": 1}]


def test_a_new_primary_uses_no_older_placement_than_the_former_one_knew(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": 1}, "sh0")
    insert = {"insert": "c", "documents": [{"_id": 1, "a": 1}]}
    reply = reply_after_lag(mini, sharded, insert, told=False)
    assert [each["code"] for each in reply["writeErrors"]] == [ErrorCode.StaleConfig]
    assert sharded.documents() == []


def test_a_donor_persists_the_time_of_its_commit_and_reports_it_to_routers(ranged: ShardedNamespace) -> None:
    old = ranged.version()
    with ranged.cluster.config.members[0].mongod_client() as config:
        before = config.admin.command({"appendOplogNote": 1, "data": {}, "writeConcern": {"w": "majority"}})
        ranged.move({"a": 10}, {"a": 20}, "sh1")
        entry = config["local"].oplog.rs.find_one(
            {"ts": {"$gt": before["operationTime"]}, "o.applyOps.ns": "config.chunks"}, sort=[("$natural", -1)]
        )
    assert entry is not None
    persisted = persisted_time(ranged.cluster, "sh0")
    assert persisted >= entry["ts"]
    client = ranged.cluster.kept_client(ranged.cluster.shards["sh0"].members[0])
    reply = client[ranged.db].command({"find": ranged.collection, "shardVersion": old}, check=False)
    assert reply["code"] == ErrorCode.StaleConfig
    assert reply["$configTime"] >= persisted


@pytest.mark.parametrize(
    ("time", "code"),
    [(Timestamp(2**32 - 1, 1), ErrorCode.StaleConfig), (1, ErrorCode.TypeMismatch)],
)
def test_impossible_times_are_not_accepted(ranged: ShardedNamespace, time: object, code: int) -> None:
    stale = {"t": Timestamp(1, 1), "e": ranged.entry()["lastmodEpoch"], "v": Timestamp(1, 0)}
    assert ranged.versioned({"find": "c", "$configTime": time}, version=stale)["code"] == code
