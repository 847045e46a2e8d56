"""A daemon that was suspended during the terms of other primaries must not use its former state."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import bson
import pytest
from pymongo.errors import PyMongoError

from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.message import MORE_TO_COME
from tests.integration.raw_client import RawClient
from tests.integration.waiting import eventually
from tests.pauses import paused
from tests.shardd.mini_cluster import MAJORITY, Client, Member, MiniCluster, Process, Set, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace

MOVED = ({"a": 0}, {"a": 10})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Two shards; ``sh0`` has three members."""
    with mini_cluster(tmp_path_factory.mktemp("terms"), members=(3, 1)) as cluster:
        yield cluster


def asleep(process: Process) -> AbstractContextManager[None]:
    """Suspend a process until the block ends."""
    assert process.running is not None
    return paused(process.running.pid)


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


def make_primary(*candidates: Member) -> Member:
    """Have the mongod of one of some members elected, and return the member.

    Without the primary only the member with the newest oplog entry can win.
    """

    def is_elected(member: Member) -> bool:
        with member.mongod_client() as mongod:
            try:
                mongod.admin.command("replSetStepUp")
            except PyMongoError:
                return False
        return is_primary(member)

    return eventually(
        lambda: next(filter(is_elected, candidates), None),
        what=f"one of {[each.address for each in candidates]} is primary",
    )


def move(cluster: MiniCluster, namespace: str, to: str) -> None:
    """Move the range from one present primary to the other."""
    with cluster.config_client() as config:
        move = {"_configsvrMoveRange": namespace, "toShard": to, "min": MOVED[0], "max": MOVED[1]}

        def is_moved() -> bool:
            try:
                config.admin.command({**move, "writeConcern": MAJORITY})
            except PyMongoError:
                time.sleep(0.1)  # the new primary is not known everywhere yet
                return False
            return True

        eventually(is_moved, what="the range is moved")


def test_a_request_in_the_socket_of_a_suspended_daemon_is_not_run_by_old_metadata(world: MiniCluster) -> None:
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
        with asleep(first.daemon):
            write = {**insert, "documents": [{"_id": "acknowledged?", "a": 5}], "writeConcern": {"w": "majority"}}
            writer.send_command(write, db="slept")
            finder.send_command({"find": "c", "filter": {"a": 5}, **version}, db="slept")
            unanswered = {**insert, "documents": [{"_id": "unanswered", "a": 6}], "writeConcern": {"w": 0}}
            silent.send_command(unanswered, db="slept", flags=MORE_TO_COME)
            make_primary(second)
            move(world, "slept.c", "sh1")
            make_primary(first)
        reply = writer.receive_reply()
        assert [each["code"] for each in reply["writeErrors"]] == [ErrorCode.StaleConfig], reply
        reply = finder.receive_reply()
        assert reply.get("codeName") == "StaleConfig", reply
        # A connection's requests are served one after the other: the unanswered one is over when this is answered.
        assert silent.command({"ping": 1})["ok"] == 1
        with first.mongod_client() as mongod:
            assert not list(mongod.slept.c.find({"a": {"$in": [5, 6]}}))


def test_a_cursor_on_a_former_primary_does_not_show_what_its_successor_receives(world: MiniCluster) -> None:
    sharded = ShardedNamespace(world, "outlived.c", {"a": 1}, "sh0")
    sharded.split([{"a": 0}, {"a": 10}])
    sharded.move(*MOVED, "sh1")
    sharded.insert(*({"_id": number, "a": 10 + number} for number in range(10)))
    sharded.insert({"_id": "elsewhere", "a": 5}, shard="sh1")
    shard = world.shards["sh0"]
    first = primary_of(shard)
    find = {"find": "c", "batchSize": 2, "shardVersion": sharded.version()}
    with clients_of(first, 1) as (client,):
        cursors = [client.command({**find, **limit}, db="outlived")["cursor"]["id"] for limit in ({}, {"limit": 1000})]
        make_primary(next(each for each in shard.members if each is not first))
        move(world, "outlived.c", "sh0")
        first.wait_has_all_of(primary_of(shard))
        for cursor in cursors:
            reply = client.command({"getMore": cursor, "collection": "c"}, db="outlived")
            assert [each["_id"] for each in reply["cursor"]["nextBatch"]] == list(range(2, 10)), reply
    make_primary(first)
    with first.client() as daemon:
        eventually(lambda: daemon.admin.command("hello")["isWritablePrimary"], what="its daemon is primary as well")


def test_what_a_suspended_mongod_may_answer(world: MiniCluster) -> None:
    sharded = ShardedNamespace(world, "napped.c", {"a": 1}, "sh0")
    shard = world.shards["sh0"]
    first = primary_of(shard)
    find = {"find": "c", "filter": {"a": 1}, "shardVersion": sharded.version()}
    reads = {
        "linearizable": {**find, "readConcern": {"level": "linearizable"}},
        "majority": {**find, "readConcern": {"level": "majority"}},
        "secondary": {**find, "$readPreference": {"mode": "secondaryPreferred"}},
    }
    insert = {"insert": "c", "shardVersion": sharded.version(), "writeConcern": {"w": "majority"}}
    with clients_of(first, len(reads)) as clients:
        writer = clients[0]
        reply = writer.command({**insert, "documents": [{"_id": "known", "a": 1}]}, db="napped")
        assert reply == reply | {"n": 1, "ok": 1}, reply
        for client, read in zip(clients, reads.values(), strict=True):
            assert client.command(read, db="napped")["ok"] == 1
        with asleep(first.mongod):
            for client, read in zip(clients, reads.values(), strict=True):
                client.send_command(read, db="napped")
            second = make_primary(*(each for each in shard.members if each is not first))
            with second.client() as other:
                late = {**insert, "documents": [{"_id": "late", "a": 1}]}
                eventually(lambda: is_done(other, late), what="the new primary takes writes")
        for client, name in zip(clients, reads, strict=True):
            frame = client.receive()
            if not frame:
                continue  # the daemon considered a mongod lost that was suspended so long, and closed all connections
            reply = dict(bson.decode(frame[21:]))
            if name == "linearizable":
                # mongod notices at the end of the read that it is no longer primary.
                assert reply["ok"] == 0, reply
                assert is_role_change(reply["code"]), reply
            elif reply["ok"]:
                # As in MongoDB: the majority-committed data at the time of the read's admission.
                assert "known" in [each["_id"] for each in reply["cursor"]["firstBatch"]], reply
            else:
                assert is_role_change(reply["code"]), reply


def is_done(client: Client, insert: dict[str, Any]) -> bool:
    """Whether an insert succeeds, now or in an attempt whose reply was lost."""
    try:
        reply = client.napped.command(insert)
    except PyMongoError:
        return False
    return bool(reply["n"]) or reply["writeErrors"][0]["code"] == ErrorCode.DuplicateKey


def is_role_change(code: int) -> bool:
    return has_category(code, Category.NOT_PRIMARY) or has_category(code, Category.INTERRUPTION)
