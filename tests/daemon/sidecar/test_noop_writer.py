"""The oplog reaches the times that clients wait for, also if mongod's global lock is taken."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
import trio.testing
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.daemon.sidecar.noop_writer import NoopWriter, append_oplog_note
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.hello import HelloMirror
    from shardwright.daemon.sidecar.mongod import LocalMongod

HERE = "host:1"

NOTE = {"appendOplogNote": 1, "data": {}}


class FakeMongod:
    """A mongod whose set's oplog advances by one tick with each no-op, and which is also the pool of every member.

    Attributes:
        address: its address.
        hello: says who is primary.
        newest: the newest time in its oplog.
        noops: how many have been written.
        is_primary_frozen: no-ops hang.
    """

    def __init__(self, address: str = HERE) -> None:
        self.address = address
        self.hello = {"primary": HERE}
        self.newest = Timestamp(10, 1)
        self.noops = 0
        self.is_primary_frozen = False

    @property
    def pool(self) -> "FakeMongod":
        return self

    def pool_of_member(self, address: str) -> "FakeMongod":
        assert address == HERE
        return self

    async def command(self, _: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if "ping" in command:
            return {"ok": 1.0, "operationTime": self.newest}
        if self.is_primary_frozen:
            await trio.sleep_forever()
        told = command.get("$clusterTime", {}).get("clusterTime", self.newest)
        self.newest = Timestamp(max(self.newest, told).time, max(self.newest, told).inc + 1)
        self.noops += 1
        return {"ok": 1.0, "operationTime": self.newest}


def find_after(time: Timestamp, cluster_time: Timestamp) -> Request:
    concern = {"level": "local", "afterClusterTime": time}
    body = {"find": "c", "readConcern": concern, "$clusterTime": {"clusterTime": cluster_time}, "$db": "d"}
    return Request(OpMsg(op_msg(bson.encode(body), request_id=next_request_id())))


def test_a_time_in_the_future_does_not_prevent_reaching_later_ones() -> None:
    mongod = FakeMongod()
    writer = NoopWriter(cast("LocalMongod", mongod), cast("HelloMirror", mongod))
    trio.run(writer.reach, find_after(Timestamp(1_000_000, 1), Timestamp(10, 1)))
    assert mongod.noops == 1
    trio.run(writer.reach, find_after(Timestamp(20, 5), Timestamp(20, 5)))
    assert mongod.noops == 2
    assert mongod.newest == Timestamp(20, 6)
    trio.run(writer.reach, find_after(Timestamp(20, 5), Timestamp(20, 5)))
    assert mongod.noops == 2


def test_the_times_of_writes_that_were_passed_on_need_no_noop() -> None:
    mongod = FakeMongod()
    writer = NoopWriter(cast("LocalMongod", mongod), cast("HelloMirror", mongod))
    time, later = Timestamp(20, 5), Timestamp(20, 6)
    writer.note_reply(op_msg(bson.encode({"n": 1, "ok": 1.0, "operationTime": time}), request_id=1))
    writer.note_reply(op_msg(bson.encode({"n": 1, "ok": 1.0, "operationTime": Timestamp(19, 9)}), request_id=1))
    writer.note_reply(op_msg(bson.encode({"operationTime": Timestamp(30, 1), "ok": 1.0}), request_id=1))
    writer.note_reply(b"")
    assert not writer.has_to_reach(find_after(time, time))
    assert writer.has_to_reach(find_after(later, later))
    trio.run(writer.reach, find_after(time, time))
    assert mongod.noops == 0


def test_a_secondary_needs_no_noop_for_what_it_has_reached() -> None:
    mongod = FakeMongod("host:2")
    mongod.is_primary_frozen = True
    writer = NoopWriter(cast("LocalMongod", mongod), cast("HelloMirror", mongod))
    trio.run(writer.reach, find_after(mongod.newest, mongod.newest))
    assert not writer.has_to_reach(find_after(mongod.newest, mongod.newest))


def test_a_request_is_not_held_back_by_a_frozen_primary() -> None:
    mongod = FakeMongod("host:2")
    mongod.is_primary_frozen = True
    writer = NoopWriter(cast("LocalMongod", mongod), cast("HelloMirror", mongod))

    async def reach() -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(writer.reach, find_after(Timestamp(20, 5), Timestamp(20, 5)))
        return trio.current_time() - began

    assert trio.run(reach, clock=trio.testing.MockClock(autojump_threshold=0)) <= 1.0


class Busy:
    """A mongod that refuses some commands.

    Args:
        codes: the errors of its first replies.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked = 0

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        assert (db, command) == ("admin", NOTE)
        self.asked += 1
        if self.codes:
            raise CommandError(self.codes.pop(0), "why")
        return {"ok": 1.0}


def append(mongod: Busy) -> dict[str, Any]:
    return trio.run(append_oplog_note, mongod.command, NOTE, clock=MockClock(autojump_threshold=0))


def test_a_note_waits_for_the_lock() -> None:
    mongod = Busy(*[ErrorCode.LockFailed] * 5)
    assert append(mongod) == {"ok": 1.0}
    assert mongod.asked == 6


def test_a_note_does_not_wait_for_ever() -> None:
    with pytest.raises(CommandError) as raised:
        append(Busy(*[ErrorCode.LockFailed] * 10_000))
    assert raised.value.code == ErrorCode.LockFailed


def test_other_errors_are_final() -> None:
    mongod = Busy(ErrorCode.NotWritablePrimary)
    with pytest.raises(CommandError):
        append(mongod)
    assert mongod.asked == 1
