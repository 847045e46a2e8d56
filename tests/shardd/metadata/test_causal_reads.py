"""Reads on a secondary after a given time see the placement of that time."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
from bson import MaxKey, MinKey
from bson.timestamp import Timestamp

from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import CausalReads
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.shardd.mini_cluster import MAJORITY, Member, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import LocalMongod


class CachedEntries:
    """A mongod with nothing but a cached entry, which records its commands."""

    def __init__(self) -> None:
        self.entry: dict[str, Any] = {"_id": "d.c", "enterCriticalSectionCounter": 1}
        self.asked: list[Mapping[str, Any]] = []

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        assert db == "config"
        self.asked.append(command)
        return {"cursor": {"firstBatch": [dict(self.entry)]}}


def find_after(time: Timestamp | None, **fields: object) -> Request:
    level = {"level": "local"} if time is None else {"level": "local", "afterClusterTime": time}
    body = bson.encode({"find": "c", "readConcern": level, **fields, "$db": "d"})
    return Request(OpMsg(op_msg(body, request_id=next_request_id())))


def test_metadata_is_forgotten_when_the_entry_has_changed() -> None:
    mongod = CachedEntries()
    state = NamespaceState("d.c", "sh0")
    reads = CausalReads(cast("LocalMongod", mongod))

    def is_known_after(request: Request) -> bool:
        state.learn(None)
        trio.run(reads.prepare, request, state)
        return state.is_known

    assert is_known_after(find_after(None))
    assert mongod.asked == []
    assert not is_known_after(find_after(Timestamp(7, 1), maxTimeMS=500))
    assert mongod.asked[0]["readConcern"] == {"level": "local", "afterClusterTime": Timestamp(7, 1)}
    assert mongod.asked[0]["maxTimeMS"] == 500
    assert is_known_after(find_after(Timestamp(7, 2)))
    mongod.entry["enterCriticalSectionCounter"] = 2
    assert not is_known_after(find_after(Timestamp(7, 3)))
    assert is_known_after(find_after(Timestamp(7, 4)))


def test_an_idle_primary_reaches_the_time_of_another_shard(mini: MiniCluster, db: str) -> None:
    version = ShardedNamespace(mini, f"{db}.c", {"a": 1}, "sh0").version()
    here, there = (mini.kept_client(mini.shards[shard].members[0]) for shard in ("sh0", "sh1"))
    with here.start_session() as reading, there.start_session() as writing:
        writing.advance_cluster_time(here.admin.command("ping")["$clusterTime"])
        # Each document takes a tick; with so many, no unrelated write on this shard catches up.
        insert = {"insert": "c", "documents": [{} for _ in range(1000)], "writeConcern": MAJORITY}
        written = there[db].command(insert, session=writing)
        reading.advance_cluster_time(written["$clusterTime"])
        after = {"readConcern": {"level": "local", "afterClusterTime": written["operationTime"]}}
        here[db].command({"find": "c", **after, "shardVersion": version}, session=reading)
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        note = {"o.noop write for afterClusterTime read concern": 1, "ts": {"$gte": written["operationTime"]}}
        assert mongod.local["oplog.rs"].find_one(note)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose shards have two members each."""
    with mini_cluster(tmp_path_factory.mktemp("pairs"), members=2) as cluster:
        yield cluster


def members_of(cluster: MiniCluster, shard: str) -> tuple[Member, Member]:
    """The primary and the secondary."""
    first, second = cluster.shards[shard].members
    with second.client() as client:
        return (first, second) if client.admin.command("hello")["secondary"] else (second, first)


def test_a_secondary_of_an_idle_shard_reaches_the_time_of_another_shard(pairs: MiniCluster) -> None:
    """Its daemon has the primary write a no-op; the next periodic one might be ten seconds away."""
    version = ShardedNamespace(pairs, "idle.c", {"a": 1}, "sh0").version()
    primary, secondary = members_of(pairs, "sh0")
    here, there = pairs.kept_client(secondary), pairs.kept_client(members_of(pairs, "sh1")[0])
    with here.start_session() as reading, there.start_session() as writing:
        writing.advance_cluster_time(here.admin.command("ping")["$clusterTime"])
        insert = {"insert": "c", "documents": [{} for _ in range(1000)], "writeConcern": MAJORITY}
        written = there["elsewhere"].command(insert, session=writing)
        reading.advance_cluster_time(written["$clusterTime"])
        after = {"readConcern": {"level": "local", "afterClusterTime": written["operationTime"]}}
        find = {"find": "c", **after, "shardVersion": version, "$readPreference": {"mode": "secondary"}}
        here["idle"].command(find, session=reading)
    with primary.mongod_client() as mongod:
        note = {"o.noop write for afterClusterTime read concern": 1, "ts": {"$gte": written["operationTime"]}}
        assert mongod.local["oplog.rs"].find_one(note)


def test_a_secondary_of_the_donor_refuses_a_stale_router(pairs: MiniCluster) -> None:
    sharded = ShardedNamespace(pairs, "d.c", {"a": 1}, "sh0")
    sharded.insert(*({"_id": number, "a": number} for number in range(100)))
    old = sharded.version()
    primary, behind = members_of(pairs, "sh0")
    secondary = pairs.kept_client(behind)
    find = {"find": "c", "shardVersion": old, "$readPreference": {"mode": "secondary"}}
    before = pairs.kept_client(primary).admin.command("ping")["$clusterTime"]["clusterTime"]
    first = secondary.d.command({**find, "readConcern": {"level": "local", "afterClusterTime": before}})
    assert len(first["cursor"]["firstBatch"]) == 100
    move = {"min": {"a": MinKey()}, "max": {"a": MaxKey()}, "toShard": "sh1", "writeConcern": MAJORITY}
    with pairs.config_client() as config:
        config.admin.command({"_configsvrMoveRange": "d.c", **move})
    recipient = pairs.kept_client(members_of(pairs, "sh1")[0]).admin.command("ping")
    after = {"level": "local", "afterClusterTime": recipient["$clusterTime"]["clusterTime"]}
    with secondary.start_session() as session:
        session.advance_cluster_time(recipient["$clusterTime"])
        reply = secondary.d.command({**find, "readConcern": after}, check=False, session=session)
    assert reply.get("code") == 13388, reply
