"""Opening cursors on shards for clients that do not wait for all of them."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
import trio
import trio.testing

from shardwright.router.cursors.manager import CursorManager
from shardwright.router.operations.opening_for_merge import open_for_merge
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request

CURSOR = {"cursor": {"id": bson.Int64(7), "ns": "shop.c", "firstBatch": []}, "ok": 1.0}


class FakeShards:
    """Shards of which ``slow`` answers when it is allowed to, and a router's cursors.

    Attributes:
        cursors: see above.
        asked: the command of each shard, decoded.
        killing: the commands that end operations and cursors, with the address they went to.
        may_answer: whether ``slow`` may answer.
    """

    def __init__(self) -> None:
        self.cursors = CursorManager()
        self.asked: dict[str, dict[str, Any]] = {}
        self.killing: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = trio.Event()

    async def open(self, *shards: str) -> list[ShardReply]:
        """Open a cursor on these shards."""
        context = SimpleNamespace(sender=self, cursors=self.cursors)
        key = bson.Binary(bytes(16), 4)
        body = bson.encode({"aggregate": "c", "pipeline": [], "cursor": {}, "clientOperationKey": key, "$db": "shop"})
        frame = op_msg(body, request_id=1)
        operation = Operation(cast("Any", context), cast("Any", None), Request(OpMsg(frame)))
        return await open_for_merge(operation, dict.fromkeys(shards, frame), preference=PRIMARY)

    async def send(self, shard: str, frame: bytes, *, on_sending: Callable[[str], None], **_: object) -> ShardReply:
        on_sending(f"{shard}:1")
        self.asked[shard] = bson.decode(OpMsg(frame).body)
        if shard == "slow":
            await self.may_answer.wait()
        if shard == "failing":
            raise CommandError(6, "gone")
        return ShardReply(shard, f"{shard}:1", op_msg(bson.encode(CURSOR), request_id=1))

    async def exchange(self, address: str, frame: bytes) -> bytes:
        self.killing.append((address, bson.decode(OpMsg(frame).body)))
        return frame

    def killed(self) -> list[tuple[str, Any]]:
        """Which operations and cursors were killed, by address; then forgets them."""
        found = [(address, *list(command.values())[1]) for address, command in self.killing]
        self.killing.clear()
        return sorted(found, key=str)


Scenario = Callable[[FakeShards], Awaitable[None]]


def run(scenario: Scenario) -> None:
    """Run a scenario beside the tasks of the cursors."""

    async def main() -> None:
        shards = FakeShards()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shards.cursors.run)
            await trio.testing.wait_all_tasks_blocked()
            await scenario(shards)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


async def cancelled_opening(shards: FakeShards) -> None:
    """Begin to open cursors for a client that disconnects before the slow shard answers."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shards.open, "quick", "slow")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()


def test_cursors_that_are_opened_for_nobody_are_killed() -> None:
    async def scenario(shards: FakeShards) -> None:
        await cancelled_opening(shards)
        keys = {shard: command["clientOperationKey"] for shard, command in shards.asked.items()}
        assert len({*keys.values(), bytes(16)}) == 3
        assert shards.killed() == [("quick:1", 7), ("slow:1", keys["slow"])]
        shards.may_answer.set()
        await trio.testing.wait_all_tasks_blocked()
        assert shards.killed() == [("slow:1", 7)]

    run(scenario)


def test_a_shard_that_never_answers_is_not_waited_for_forever() -> None:
    async def scenario(shards: FakeShards) -> None:
        await cancelled_opening(shards)
        shards.killed()
        await trio.sleep(600)
        assert shards.killed() == [("slow:1", shards.asked["slow"]["clientOperationKey"])]

    run(scenario)


def test_after_a_failure_the_other_cursors_are_killed() -> None:
    async def scenario(shards: FakeShards) -> None:
        with pytest.raises(CommandError, match="gone"):
            await shards.open("quick", "failing")
        await trio.testing.wait_all_tasks_blocked()
        assert shards.killed() == [("quick:1", 7)]

    run(scenario)


def test_cursors_of_successful_operations_stay_open() -> None:
    async def scenario(shards: FakeShards) -> None:
        assert len(await shards.open("quick", "quicker")) == 2
        await trio.testing.wait_all_tasks_blocked()
        assert shards.killed() == []

    run(scenario)
