"""Shards with oplogs, which answer what a change stream asks of them, at the speed of trio's mock clock."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final, cast

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.router.change_streams.shard_streams import ShardCommand, ShardStreams
from shardwright.router.change_streams.specification import Specification
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.oplog_advancer import OplogAdvancer
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.read_preference import PRIMARY
from tests.router.change_streams.tokens import mark, token
from tests.router.reads.pipelines import pipeline_of
from tests.router.reads.requests import request

QUIET_MS: Final = 20
"""After waiting for events for so long, a shard writes a no-op, as a mongod does every ten seconds."""


class FakeShard:
    """One shard.

    Attributes:
        oplog: the time of each entry, and whether it is an event; a no-op otherwise.
        cursors: the time from which each cursor still has to read.
        opened_at: the start of each cursor that was opened.
        asked: how many batches it was asked for.
        is_awake: it answers when this is set.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.oplog: list[tuple[int, bool]] = [(0, False)]
        self.cursors: dict[int, int] = {}
        self.opened_at: list[int] = []
        self.asked = 0
        self.is_awake = trio.Event()
        self.is_awake.set()
        self._grown = trio.Event()

    def write(self, time: int, *, is_event: bool) -> None:
        """Append an entry."""
        assert time > self.oplog[-1][0]
        self.oplog.append((time, is_event))
        self._grown.set()
        self._grown = trio.Event()

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """The reply to a command."""
        await self.is_awake.wait()
        if "appendOplogNote" in command:
            wanted, known = command["maxClusterTime"].inc, command["$clusterTime"]["clusterTime"].inc
            if self.oplog[-1][0] >= wanted:
                return {"ok": 0.0, "code": 209, "errmsg": "stale"}
            self.write(max(known, self.oplog[-1][0]) + 1, is_event=False)
            return {"ok": 1.0, "operationTime": Timestamp(1, self.oplog[-1][0])}
        if "aggregate" in command:
            cursor_id = len(self.opened_at) + 1
            start = command["pipeline"][0]["$changeStream"]
            self.opened_at.append(_start(start))
            self.cursors[cursor_id] = self.opened_at[-1]
            return _cursor(cursor_id, "firstBatch", [], mark(self.opened_at[-1]))
        cursor_id = command["getMore"]
        with trio.move_on_after(command["maxTimeMS"] / 1000) as limit:
            while not (found := self._events(self.cursors[cursor_id])):
                await self._grown.wait()
        if limit.cancelled_caught and command["maxTimeMS"] >= QUIET_MS:
            self.write(self.oplog[-1][0] + 1, is_event=False)
        promise = token(found[-1]) if found else mark(max(self.oplog[-1][0], self.cursors[cursor_id]))
        self.cursors[cursor_id] = self.oplog[-1][0] + 1
        return _cursor(cursor_id, "nextBatch", found, promise)

    async def wait_reached(self, time: int) -> None:
        """Wait until the oplog has an entry of a time, or a later one."""
        while self.oplog[-1][0] < time:
            await self._grown.wait()

    def _events(self, start: int) -> list[int]:
        return [time for time, is_event in self.oplog if is_event and time >= start]


class FakePendingReply:
    """A reply that has arrived once `wait_begun` has returned."""

    def __init__(self, cluster: "FakeCluster", shard_id: str, frame: bytes) -> None:
        self._cluster = cluster
        self._shard_id = shard_id
        self._frame = frame
        self._reply: ShardReply | None = None

    async def wait_begun(self) -> None:
        """As `PendingReply`."""
        self._reply = await self._cluster.send(self._shard_id, self._frame)

    async def receive(self, relay: object) -> ShardReply:
        """As `PendingReply`."""
        assert self._reply is not None
        await trio.lowlevel.checkpoint()
        return self._reply

    def give_up(self) -> None:
        """As `PendingReply`."""


class FakeCluster:
    """Shards by name, and the part of a router's context that change streams on them use.

    Attributes:
        reads_of_topology: number of reads of the list of shards.
        killed: cursors that the router does not need.
    """

    def __init__(self, *names: str) -> None:
        self.shards = {name: FakeShard(name) for name in names}
        self.config = FakeShard("config")
        self.reads_of_topology = 0
        self.killed: list[str] = []
        self.clock = VectorClock()
        self._time = 0

    def write(self, shard: str) -> int:
        """Write an event on a shard, at the next time; returns that."""
        entries = [each.oplog[-1][0] for each in (*self.shards.values(), self.config)]
        self._time = max(self._time, *entries) + 1
        self.shards[shard].write(self._time, is_event=True)
        return self._time

    def add_shard(self, name: str) -> None:
        """A shard joins."""
        self.shards[name] = FakeShard(name)

    def remove_shard(self, name: str) -> None:
        """A shard is removed: the router no longer knows it."""
        del self.shards[name]

    async def open_streams(self, start: int, shards_as_of: int | None = None) -> ShardStreams:
        """Streams on the present shards, whose list was read as of the start or of another time."""
        oplogs = OplogAdvancer(cast("Any", self))
        context = SimpleNamespace(sender=self, shards=self, cursors=self, oplogs=oplogs, clock=self.clock)
        stage: dict[str, Any] = {"$changeStream": {"startAtOperationTime": Timestamp(1, start)}}
        specification = Specification.parse(pipeline_of(stage).stages[0])
        assert specification is not None
        command = ShardCommand.of(request({"aggregate": "c", "pipeline": [stage]}), specification, (), PRIMARY)
        as_of = start if shards_as_of is None else shards_as_of
        streams = ShardStreams(cast("Any", context), command, Timestamp(1, as_of))
        frame = command.frame(specification.starting_at(Timestamp(1, start)), b"")
        for name in self.shards:
            streams.adopt(await self.send(name, frame))
        return streams

    # What a router's context does.

    async def send(self, shard_id: str, frame: bytes, **_: object) -> ShardReply:
        """As `ShardSender`."""
        await trio.sleep(0.001)
        shard = self.config if shard_id == "config" else self.shards[shard_id]
        answer = await shard.answer(bson.decode(OpMsg(frame).body))
        self.clock.observe_cluster_time(pack_timestamp(Timestamp(1, shard.oplog[-1][0])))
        return ShardReply(shard_id, f"{shard_id}:1", op_msg(bson.encode(answer), request_id=1))

    async def ask(self, shard_id: str, address: str, frame: bytes, _: tuple[str, ...] = ()) -> "FakePendingReply":
        """As `ShardSender`."""
        self.shards[shard_id].asked += 1
        return FakePendingReply(self, shard_id, frame)

    async def get(self, shard_id: str) -> FakeShard:
        """As `ShardRegistry`."""
        if shard_id not in self.shards:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return self.shards[shard_id]

    async def reload_as_of(self, time: int) -> tuple[str, ...]:
        """As `ShardRegistry`."""
        await trio.sleep(0.001)
        await self.config.wait_reached(time & 0xFFFFFFFF)
        self.reads_of_topology += 1
        return tuple(self.shards)

    def kill_remotes(self, remotes: Iterable[RemoteCursor]) -> None:
        """As `CursorManager`."""
        self.killed += [remote.shard_id for remote in remotes]


def _start(specification: dict[str, Any]) -> int:
    if "startAtOperationTime" in specification:
        return int(specification["startAtOperationTime"].inc)
    parsed = ResumeToken.parse(bson.encode(specification["startAfter"]))
    assert parsed is not None
    return parsed.time.inc  # a mongod returns the event itself, too, which a mongos leaves out


def _cursor(cursor_id: int, batch: str, times: list[int], promise: ResumeToken) -> dict[str, Any]:
    events = [{"_id": {"_data": token(time).data}, "$sortKey": [{"_data": token(time).data}]} for time in times]
    cursor = {batch: events, "postBatchResumeToken": bson.decode(promise.raw), "id": bson.Int64(cursor_id), "ns": "d.c"}
    return {"cursor": cursor, "ok": 1.0}
