"""Retryable writes across real moves: executed once, wherever they are retried."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import bson
import pytest
import trio

from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import BackendError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.transport.client import Connection, handshake_document
from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.session_history.history_writes import Session, reply_to
from tests.transports import new_transport

LOW, HIGH = {"a": 0}, {"a": 10}

_names = count()


class MovingRange:
    """A collection with a range that moves; the test is the router."""

    def __init__(self, cluster: MiniCluster, name: str) -> None:
        self.sharded = ShardedNamespace(cluster, name, {"a": 1}, "sh0")
        self.sharded.split([LOW, HIGH])
        self._cluster = cluster

    def move(self, to: str) -> None:
        """Move the range."""
        self.sharded.move(LOW, HIGH, to)

    def write(self, shard: str, command: dict[str, Any]) -> dict[str, Any]:
        """Send a write to a shard, as a router does that knows it as the owner of the range."""
        address = self._cluster.shards[shard].members[0].address

        async def main() -> dict[str, Any]:
            with trio.fail_after(60):
                connection = await Connection.open(new_transport(), address, handshake=handshake_document("tests"))
                try:
                    version = self.sharded.version(shard)
                    return await reply_to(connection, self.sharded.db, {**command, "shardVersion": version})
                finally:
                    connection.close()

        return trio.run(main)

    def documents(self, shard: str) -> list[dict[str, Any]]:
        """The documents on a shard, without the keys."""
        return [{name: value for name, value in each.items() if name != "a"} for each in self.sharded.documents(shard)]


def insert(*keys: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    return {"insert": "c", "documents": [{"_id": key, "a": 5} for key in keys], **fields}


def add(*keys: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"update": "c", "updates": [{"q": {"_id": key, "a": 5}, "u": {"$inc": {"b": 1}}} for key in keys], **fields}


def modify(key: int) -> dict[str, Any]:
    return {"findAndModify": "c", "query": {"_id": key, "a": 5}, "update": {"$inc": {"b": 1}}}


@pytest.fixture
def moving(mini: MiniCluster) -> Iterator[MovingRange]:
    """A range on ``sh0``. Ranges that were given away are deleted at once, so that they can come back."""
    clients = [mini.shard_client(shard) for shard in mini.shards]
    try:
        before = [client.admin.command({"getParameter": 1, "orphanCleanupDelaySecs": 1}) for client in clients]
        for client in clients:
            client.admin.command({"setParameter": 1, "orphanCleanupDelaySecs": 0})
        yield MovingRange(mini, f"moving{next(_names)}.c")
        for client, each in zip(clients, before, strict=True):
            client.admin.command({"setParameter": 1, "orphanCleanupDelaySecs": each["orphanCleanupDelaySecs"]})
    finally:
        for client in clients:
            client.close()


def test_a_write_before_the_move(moving: MovingRange) -> None:
    inserting, adding, modifying = Session(), Session(), Session()
    moving.write("sh0", inserting.write(1, insert(1, 2)))
    moving.write("sh0", adding.write(1, add(1)))
    first = moving.write("sh0", modifying.write(1, modify(1)))
    moving.move("sh1")
    assert moving.write("sh1", inserting.write(1, insert(1, 2, 3))) == {"n": 3, "retriedStmtIds": [0, 1], "ok": 1.0}
    again = moving.write("sh1", adding.write(1, add(1)))
    assert again == {"n": 1, "retriedStmtIds": [0], "nModified": 1, "ok": 1.0}
    repeated = moving.write("sh1", modifying.write(1, modify(1)))
    assert first["value"] == repeated["value"] == {"_id": 1, "a": 5, "b": 1}
    assert (repeated["lastErrorObject"], repeated["retriedStmtId"]) == (first["lastErrorObject"], 0)
    assert moving.documents("sh1") == [{"_id": 1, "b": 2}, {"_id": 2}, {"_id": 3}]


@pytest.mark.parametrize("point", ["moveChunkHangAtStep3", "moveChunkHangAtStep4"])
def test_a_write_during_the_move(moving: MovingRange, mini: MiniCluster, point: str) -> None:
    session, number = Session(), 3
    moving.write("sh0", session.write(2, insert(1, 2)))
    donor = mini.kept_client(mini.shards["sh0"].members[0])
    mover = Thread(target=moving.move, args=("sh1",))
    with fail_point(donor, point) as here:
        mover.start()
        here.wait_entered()
        moving.write("sh0", session.write(number, add(1, 2)))
        here.turn_off()
        mover.join(60)
    assert not mover.is_alive()
    assert moving.write("sh1", session.write(number, add(1, 2)))["retriedStmtIds"] == [0, 1]
    assert moving.write("sh1", session.write(2, insert(1, 2)))["codeName"] == "TransactionTooOld"
    assert moving.documents("sh1") == [{"_id": 1, "b": 1}, {"_id": 2, "b": 1}]


def test_there_and_back(moving: MovingRange) -> None:
    """Each owner executes more of a write, and the next one knows all of it."""
    session = Session()
    moving.write("sh0", insert(1, 2, 3, 4))
    moving.write("sh0", session.write(1, add(1, stmtIds=[0])))
    moving.move("sh1")
    moving.write("sh1", session.write(1, add(2, stmtIds=[1])))
    moving.move("sh0")
    reply = moving.write("sh0", session.write(1, add(1, 2, 3)))
    assert reply == {"n": 3, "retriedStmtIds": [0, 1], "nModified": 3, "ok": 1.0}
    moving.move("sh1")
    reply = moving.write("sh1", session.write(1, add(1, 2, 3, 4)))
    assert reply == {"n": 4, "retriedStmtIds": [0, 1, 2], "nModified": 4, "ok": 1.0}
    assert moving.documents("sh1") == [{"_id": key, "b": 1} for key in (1, 2, 3, 4)]


@pytest.mark.parametrize("less", [0, 100])
def test_a_find_and_modify_of_the_longest_document(moving: MovingRange, less: int) -> None:
    """Its image and the fields around it do not fit into one document of a history."""
    session = Session()
    document = {"_id": 1, "a": 5, "b": 1, "text": ""}
    document["text"] = "x" * (BSON_OBJECT_BYTES_MAX - len(bson.encode(document)) - less)
    moving.write("sh0", {"insert": "c", "documents": [document]})
    first = moving.write("sh0", session.write(1, modify(1)))
    assert first["value"] == document
    for recipient in ("sh1", "sh0", "sh1"):
        moving.move(recipient)
        assert moving.write(recipient, session.write(1, modify(1))) == {**first, "retriedStmtId": 0}


def test_a_session_continues_after_the_move(moving: MovingRange) -> None:
    session = Session()
    moving.write("sh0", session.write(1, insert(1)))
    moving.move("sh1")
    assert moving.write("sh1", session.write(2, add(1))) == {"n": 1, "nModified": 1, "ok": 1.0}
    assert moving.write("sh1", session.write(2, add(1)))["retriedStmtIds"] == [0]
    moving.move("sh0")
    assert moving.write("sh0", session.write(2, add(1)))["retriedStmtIds"] == [0]
    assert moving.write("sh0", session.write(1, insert(1)))["codeName"] == "TransactionTooOld"
    assert moving.documents("sh0") == [{"_id": 1, "b": 1}]


def kill_the_daemon(cluster: MiniCluster) -> None:
    """Kill and restart the recipient's daemon."""
    member = cluster.shards["sh1"].members[0]
    member.restart(member.daemon)


def kill_the_mongod(cluster: MiniCluster) -> None:
    """Kill and restart the recipient's mongod."""
    member = cluster.shards["sh1"].members[0]
    member.restart(member.mongod)


@pytest.mark.parametrize("kill", [kill_the_daemon, kill_the_mongod])
def test_the_received_history_survives(
    moving: MovingRange, mini: MiniCluster, kill: Callable[[MiniCluster], None]
) -> None:
    session = Session()
    moving.write("sh0", session.write(1, insert(1)))
    moving.move("sh1")
    kill(mini)
    assert moving.write("sh1", session.write(1, insert(1, 2))) == {"n": 2, "retriedStmtIds": [0], "ok": 1.0}


def test_another_member_of_the_recipient_knows_it(tmp_path: Path) -> None:
    session = Session()
    with mini_cluster(tmp_path, members=3) as cluster:
        moving = MovingRange(cluster, "members.c")
        moving.write("sh0", session.write(1, insert(1)))
        moving.move("sh1")
        with cluster.shards["sh1"].client() as client:
            client.admin.command({"ping": 1})
            former = client.primary
            client.admin.command({"replSetStepDown": 60, "force": True})
            version = moving.sharded.version("sh1")

            async def retry() -> dict[str, Any]:
                assert client.primary is not None
                host, port = client.primary
                connection = await Connection.open(
                    new_transport(), f"{host}:{port}", handshake=handshake_document("tests")
                )
                try:
                    command = {**session.write(1, insert(1, 2)), "shardVersion": version}
                    return await reply_to(connection, "members", command)
                finally:
                    connection.close()

            def reply_of_other_member() -> dict[str, Any] | None:
                """As a router: a member that is not primary yet, or no longer, is asked again."""
                if client.primary in (None, former):
                    return None
                try:
                    reply = trio.run(retry)
                except BackendError:
                    return None
                return None if has_category(reply.get("code", 0), Category.RETRYABLE) else reply

            reply = eventually(reply_of_other_member, what="another member answers")
            assert reply == {"n": 2, "retriedStmtIds": [0], "ok": 1.0}
