"""A daemon that slept through the terms of other primaries: what it knows is of no use, and it must not use it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pymongo.errors import PyMongoError

from tests.integration.raw_client import RawClient
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MAJORITY, Member, MiniCluster, Set, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace
from wire.error_codes import ErrorCode
from wire.message import MORE_TO_COME

MOVED = ({"a": 0}, {"a": 10})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Two shards, of which ``sh0`` has three members."""
    with mini_cluster(tmp_path_factory.mktemp("terms"), members=(3, 1)) as cluster:
        yield cluster


@contextmanager
def asleep(member: Member) -> Iterator[None]:
    """The daemon of a member is stopped for the length of the block."""
    running = member.daemon.running
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGCONT)


@contextmanager
def clients_of(member: Member, count: int) -> Iterator[list[RawClient]]:
    """Connections to the daemon of a member."""
    clients = [RawClient(member.address) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.socket.close()


def primary_of(shard: Set) -> Member:
    """The member whose mongod is primary."""
    found: list[Member] = []

    def has_primary() -> bool:
        found[:] = [each for each in shard.members if is_primary(each)]
        return bool(found)

    eventually(has_primary, within=30, what=f"{shard.name} has a primary")
    return found[0]


def is_primary(member: Member) -> bool:
    with member.mongod_client() as mongod:
        return bool(mongod.admin.command("hello")["isWritablePrimary"])


def make_primary(member: Member) -> None:
    """Have the mongod of a member elected."""

    def is_elected() -> bool:
        with member.mongod_client() as mongod:
            try:
                mongod.admin.command("replSetStepUp")
            except PyMongoError:
                return False
        return is_primary(member)

    eventually(is_elected, within=60, what=f"{member.address} is primary")


def move_away(cluster: MiniCluster, namespace: str) -> None:
    """The range is given to the other shard by the current primary."""
    with cluster.config_client() as config:
        move = {"_configsvrMoveRange": namespace, "toShard": "sh1", "min": MOVED[0], "max": MOVED[1]}

        def is_moved() -> bool:
            try:
                config.admin.command({**move, "writeConcern": MAJORITY})
            except PyMongoError:
                time.sleep(0.1)  # the new primary is not known everywhere yet
                return False
            return True

        eventually(is_moved, within=60, what="the range is moved")


def test_what_was_in_the_socket_of_a_daemon_that_slept_is_not_done_by_what_it_knew(world: MiniCluster) -> None:
    sharded = ShardedNamespace(world, "slept.c", {"a": 1}, "sh0")
    sharded.split([{"a": 0}, {"a": 10}])
    shard = world.shards["sh0"]
    first = primary_of(shard)
    version = {"shardVersion": sharded.version()}
    second = next(each for each in shard.members if each is not first)
    insert = {"insert": "c", **version}
    with clients_of(first, 3) as clients:
        for client in clients:
            reply = client.command({"find": "c", "filter": {"a": 1}, **version}, db="slept")
            assert reply["ok"] == 1, reply
        writer, finder, silent = clients
        with asleep(first):
            write = {**insert, "documents": [{"_id": "acknowledged?", "a": 5}], "writeConcern": {"w": "majority"}}
            writer.send_command(write, db="slept")
            finder.send_command({"find": "c", "filter": {"a": 5}, **version}, db="slept")
            unanswered = {**insert, "documents": [{"_id": "unanswered", "a": 6}], "writeConcern": {"w": 0}}
            silent.send_command(unanswered, db="slept", flags=MORE_TO_COME)
            make_primary(second)
            move_away(world, "slept.c")
            make_primary(first)
        reply = writer.receive_reply()
        assert [each["code"] for each in reply["writeErrors"]] == [ErrorCode.StaleConfig], reply
        reply = finder.receive_reply()
        assert reply.get("codeName") == "StaleConfig", reply
        # Requests of a connection are served one after the other: the unanswered one is over when this is answered.
        assert silent.command({"ping": 1})["ok"] == 1
        with first.mongod_client() as mongod:
            assert not list(mongod.slept.c.find({"a": {"$in": [5, 6]}}))
