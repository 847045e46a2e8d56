"""Commands left unanswered at the end of a term are finished before the next term begins."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from bench.mongods import primary_mongod
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.term_fence import working_for
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.pool import ConnectionPools, Pool
from tests.pauses import paused
from tests.shardd.lone_mongod import LoneMongod
from tests.transports import new_transport

if TYPE_CHECKING:
    from pathlib import Path

TERM = 1
"""The first term of a replica set."""


class StoppableMongod(LoneMongod):
    """A separate mongod, in a daemon's term that does not end by itself."""

    pid: int

    @asynccontextmanager
    async def local(self) -> AsyncIterator[LocalMongod]:
        async def present_term() -> int:
            return TERM

        async with trio.open_nursery() as nursery:
            pools = ConnectionPools(new_transport(), lambda: handshake_document("tests"))
            nursery.start_soon(pools.run)
            yield LocalMongod(pools, self.socket, self.address, present_term)
            nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoppableMongod]:
    directory: Path = tmp_path_factory.mktemp("unanswered") / "lone"
    with PortReservation() as ports:
        plan = ProcessPlan("lone", Role.MONGOD, ports.hold_free(), "lone")
        ports.release(*plan.ports())
        with primary_mongod(find_mongod(), plan, directory, 0.25) as pid:
            mongod = StoppableMongod(plan.address, str(directory / plan.socket_name))
            object.__setattr__(mongod, "pid", pid)
            yield mongod


async def exists(mongod: LocalMongod, name: str) -> bool:
    listing = {"listCollections": 1, "filter": {"name": name}}
    return bool((await mongod.pool.command("left", listing))["cursor"]["firstBatch"])


async def is_under_way(mongod: LocalMongod, name: str) -> bool:
    pipeline = [{"$currentOp": {}}, {"$match": {"command.create": name}}]
    reply = await mongod.pool.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    return bool(reply["cursor"]["firstBatch"])


@asynccontextmanager
async def locked_out(mongod: LocalMongod, name: str) -> AsyncIterator[trio.CancelScope]:
    """In the block mongod is executing a command that is blocked; after it the command can continue."""
    await mongod.pool.command("admin", {"fsync": 1, "lock": True})
    async with trio.open_nursery() as nursery:
        try:
            nursery.start_soon(begin, mongod, name)
            while True:
                if await is_under_way(mongod, name):
                    break
                await trio.sleep(0.02)
            yield nursery.cancel_scope
        finally:
            with trio.CancelScope(shield=True):
                await mongod.pool.command("admin", {"fsyncUnlock": 1})


async def begin(mongod: LocalMongod, name: str) -> None:
    with working_for(TERM):
        await mongod.command("left", {"create": name})


def test_unread_commands_are_executed_before_the_next_term(lone: StoppableMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        await begin(mongod, "first")  # so that there is a connection
        with paused(lone.pid):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin, mongod, "unread")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        await mongod.unanswered.wait_earlier_over(TERM + 1)
        # Its connection is closed, and mongod has executed it all the same.
        assert await exists(mongod, "unread")

    lone.run(check)


def test_running_commands_are_killed(lone: StoppableMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        async with locked_out(mongod, "killed") as task:
            task.cancel()
            with trio.CancelScope(shield=True):
                await mongod.unanswered.wait_earlier_over(TERM + 1)
                assert not await is_under_way(mongod, "killed")
        assert not await exists(mongod, "killed")

    lone.run(check)


def test_commands_of_the_current_term_are_not_waited_for(lone: StoppableMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        async with locked_out(mongod, "of_this_term"):
            await mongod.unanswered.wait_earlier_over(TERM)
        assert await exists(mongod, "of_this_term")

    lone.run(check)


class SlowPool:
    """A pool in which waiting for a connection takes long enough for two elections."""

    def __init__(self) -> None:
        self.term = TERM
        self.sent: list[bytes] = []
        self.is_closed = False
        self.hello: Mapping[str, Any] = {"topologyVersion": {"processId": 1}, "connectionId": 1}

    async def borrow(self) -> "SlowPool":
        await trio.lowlevel.checkpoint()
        self.term = TERM + 2
        return self

    def give_back(self, connection: "SlowPool") -> None:
        pass

    async def exchange(self, frame: bytes) -> bytes:
        self.sent.append(frame)
        return frame

    def __getitem__(self, _address: str) -> Pool:
        return cast("Pool", self)


def test_nothing_is_sent_after_a_wait_in_which_the_term_ended() -> None:
    pool = SlowPool()

    async def present_term() -> int:
        return pool.term

    mongod = LocalMongod(cast("ConnectionPools", pool), "/mongod", "m:1", present_term)
    with pytest.raises(CommandError) as caught:
        trio.run(begin, mongod, "too_late")
    assert caught.value.code == ErrorCode.InterruptedDueToReplStateChange
    assert pool.sent == []
