"""Reads on a secondary whose daemon was paused while its mongod went on: they see neither too much nor too little."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from bson import MaxKey, MinKey

from shardwright.daemon.sidecar.role_certainty import SECONDARY_PAUSE_SECONDS_MAX
from shardwright.shardd.context.fail_point_names import RECIPIENT
from shardwright.wire.error_codes import ErrorCode
from tests import pauses
from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MAJORITY, Member, MiniCluster, Set, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace

READERS = 8
"""Number of reads that wait in the sockets of the paused daemon."""

CLONED = RECIPIENT[3]

LOW = {"min": {"a": MinKey()}, "max": {"a": 0}}
HIGH = {"min": {"a": 0}, "max": {"a": MaxKey()}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Two shards of two members each; the first one of each is primary."""
    with mini_cluster(tmp_path_factory.mktemp("secondaries"), members=2) as running:
        for shard in running.shards.values():
            shard.members.sort(key=_is_secondary)
        yield running


@pytest.fixture
def sharded(cluster: MiniCluster, request: pytest.FixtureRequest) -> ShardedNamespace:
    """A collection with 100 documents on the first shard."""
    sharded = ShardedNamespace(cluster, f"d.{request.node.name[-20:]}", {"a": 1}, "sh0")
    sharded.insert(*({"_id": number, "a": number} for number in range(-50, 50)))
    return sharded


def test_a_range_that_was_given_away_and_deleted_meanwhile(cluster: MiniCluster, sharded: ShardedNamespace) -> None:
    shard = cluster.shards["sh0"]

    def give_away() -> None:
        move(sharded, {**LOW, "waitForDelete": True})
        eventually(lambda: stored(shard, sharded) == 50, within=30, what="the range is deleted on the secondary")

    for reply in replies_after(give_away, shard, sharded, sharded.version()):
        assert reply.get("code") == ErrorCode.StaleConfig, reply


def test_a_range_that_was_being_received_meanwhile(cluster: MiniCluster, sharded: ShardedNamespace) -> None:
    """The donor still owns it, and its documents are read there."""
    shard = cluster.shards["sh1"]
    move(sharded, HIGH)
    with ExitStack() as stack, ThreadPoolExecutor(1) as mover:

        def receive() -> None:
            stack.enter_context(fail_point(cluster.kept_client(shard.members[0]), CLONED))
            mover.submit(move, sharded, LOW)
            eventually(lambda: stored(shard, sharded) == 100, within=30, what="the secondary has the range")

        replies = replies_after(receive, shard, sharded, sharded.version("sh1"))
        stack.close()
    for reply in replies:
        assert sorted(each["a"] for each in reply["cursor"]["firstBatch"]) == list(range(50))


def move(sharded: ShardedNamespace, arguments: dict[str, Any]) -> None:
    with sharded.cluster.config_client() as config:
        to = {"toShard": "sh1", "writeConcern": MAJORITY}
        config.admin.command({"_configsvrMoveRange": sharded.namespace, **arguments, **to})


def stored(shard: Set, sharded: ShardedNamespace) -> int:
    """Return the number of documents on the secondary's mongod."""
    with shard.members[1].mongod_client() as mongod:
        return int(mongod.d[sharded.collection].estimated_document_count())


@contextmanager
def slow_oplog(member: Member) -> Iterator[None]:
    """Until the block ends, what the member's mongod applies reaches its daemon a second later."""
    block: dict[str, Any] = {
        "failCommands": ["getMore"],
        "namespace": "local.oplog.rs",
        "blockConnection": True,
        "blockTimeMS": 1000,
    }
    with member.mongod_client() as mongod, fail_point(mongod, "failCommand", **block):
        yield


def replies_after(
    meanwhile: Callable[[], None], shard: Set, sharded: ShardedNamespace, version: dict[str, Any]
) -> list[dict[str, Any]]:
    """The replies to reads that are sent to the secondary while its daemon is paused."""
    primary, secondary = shard.members
    secondary.wait_has_all_of(primary)
    find = {"find": sharded.collection, "shardVersion": version, "batchSize": 200}
    find["$readPreference"] = {"mode": "secondary"}
    with ExitStack() as stack:
        clients = [stack.enter_context(secondary.client()) for _ in range(READERS)]
        readers = stack.enter_context(ThreadPoolExecutor(READERS))
        for client in clients:
            assert client.d.command(find)["ok"] == 1.0
        stack.enter_context(slow_oplog(secondary))
        with paused(secondary):
            replies = [readers.submit(client.d.command, find, check=False) for client in clients]
            meanwhile()
        return [reply.result(60) for reply in replies]


@contextmanager
def paused(member: Member) -> Iterator[None]:
    """Suspend a member's daemon until the block ends, and long enough for the daemon to notice it."""
    assert member.daemon.running is not None
    with pauses.paused(member.daemon.running.pid):
        began = time.monotonic()
        yield
        time.sleep(max(0.0, began + 1.1 * SECONDARY_PAUSE_SECONDS_MAX - time.monotonic()))


def _is_secondary(member: Member) -> bool:
    with member.client() as client:
        return bool(client.admin.command("hello")["secondary"])
