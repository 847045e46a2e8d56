"""Opening cursors on several shards: on all of them, or on none."""

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
import trio
import trio.testing

from shardwright.router.cursors.manager import CursorManager
from shardwright.router.operations.cursor_opening import open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.transports import new_transport

CURSOR = {"cursor": {"id": bson.Int64(7), "ns": "shop.c", "firstBatch": []}, "ok": 1.0}


class FakeShards:
    """Shards, of which ``silent`` never answers and ``failing`` fails, and a router's cursors.

    Attributes:
        killed: the cursors that were killed, with the address of their shard.
    """

    def __init__(self) -> None:
        self.cursors = CursorManager(new_transport().unread_replies.holdings)
        self.killed: list[tuple[str, list[int]]] = []

    async def open(self, *shards: str) -> list[ShardReply]:
        """Open a cursor on these shards."""
        context = SimpleNamespace(sender=self, cursors=self.cursors, access=None)
        frame = op_msg(bson.encode({"aggregate": "c", "pipeline": [], "cursor": {}, "$db": "shop"}), request_id=1)
        operation = Operation(cast("Any", context), cast("Any", None), Request(OpMsg(frame)))
        return await open_on_shards(operation, dict.fromkeys(shards, frame))

    async def send_to_all(self, frames: Mapping[str, bytes], replies: dict[str, ShardReply], **_: object) -> None:
        for shard in frames:
            if shard == "silent":
                await trio.sleep_forever()
            if shard == "failing":
                replies[shard] = ShardReply.failed(shard, CommandError(6, "gone"))
            else:
                replies[shard] = ShardReply(shard, f"{shard}:1", op_msg(bson.encode(CURSOR), request_id=1))

    async def exchange(self, address: str, frame: bytes) -> bytes:
        self.killed.append((address, bson.decode(OpMsg(frame).body)["cursors"]))
        return frame


Scenario = Callable[[FakeShards], Awaitable[None]]


def run(scenario: Scenario) -> None:
    """Run a scenario concurrently with the tasks of the cursors."""

    async def main() -> None:
        shards = FakeShards()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shards.cursors.run)
            await scenario(shards)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_after_a_failure_the_cursors_of_the_other_shards_are_killed() -> None:
    async def scenario(shards: FakeShards) -> None:
        with pytest.raises(CommandError, match="gone"):
            await shards.open("first", "failing", "second")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(shards.killed) == [("first:1", [7]), ("second:1", [7])]

    run(scenario)


def test_if_the_client_leaves_the_cursors_of_shards_that_have_answered_are_killed() -> None:
    async def scenario(shards: FakeShards) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shards.open, "first", "silent")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert shards.killed == [("first:1", [7])]

    run(scenario)


def test_cursors_that_were_all_opened_stay_open() -> None:
    async def scenario(shards: FakeShards) -> None:
        assert len(await shards.open("first", "second")) == 2
        await trio.testing.wait_all_tasks_blocked()
        assert shards.killed == []

    run(scenario)
