"""Commands left unanswered at the end of a reign are finished before the next one begins."""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from bench.mongods import primary_mongod
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.term_fence import Reign, working_for
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

BEFORE = Reign(1, 1)
"""In the first term of a replica set."""

LATER = pytest.mark.parametrize("later", [Reign(1, 3), Reign(2, 3)], ids=["in the same term", "in a later term"])


class StoppableMongod(LoneMongod):
    """A separate mongod, in a daemon's reign that does not end by itself."""

    pid: int

    @asynccontextmanager
    async def local(self) -> AsyncIterator[LocalMongod]:
        async def present_reign() -> Reign:
            return BEFORE

        async with trio.open_nursery() as nursery:
            pools = ConnectionPools(new_transport(), lambda: handshake_document("tests"))
            nursery.start_soon(pools.run)
            yield LocalMongod(pools, self.socket, self.address, present_reign)
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
    with working_for(BEFORE):
        await mongod.command("left", {"create": name})


@LATER
def test_unread_commands_are_executed_before_the_next_reign(lone: StoppableMongod, later: Reign) -> None:
    unread = f"unread{later.term}"

    async def check(mongod: LocalMongod) -> None:
        await begin(mongod, f"first{later.term}")  # so that there is a connection
        with paused(lone.pid):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin, mongod, unread)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        with working_for(later):
            await mongod.unanswered.wait_earlier_over()
        # Its connection is closed, and mongod has executed it all the same.
        assert await exists(mongod, unread)

    lone.run(check)


@LATER
def test_running_commands_are_killed(lone: StoppableMongod, caplog: pytest.LogCaptureFixture, later: Reign) -> None:
    async def check(mongod: LocalMongod) -> None:
        async with locked_out(mongod, "killed") as task:
            task.cancel()
            with trio.CancelScope(shield=True), working_for(later):
                await mongod.unanswered.wait_earlier_over()
                assert not await is_under_way(mongod, "killed")
        assert not await exists(mongod, "killed")

    with caplog.at_level(logging.INFO):
        lone.run(check)
    waits = [vars(each)["fields"] for each in caplog.records if each.message.startswith("Waiting for commands")]
    assert waits
    assert all(len(each["connections"]) == 1 and each["terms"] == [BEFORE.term] for each in waits)


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_commands_of_the_current_reign_are_not_waited_for(lone: StoppableMongod, is_abandoned: bool) -> None:
    """Some belong to tasks that began before this step of the take-over, others to an attempt that failed."""
    name = f"of_this_reign{is_abandoned}"

    async def check(mongod: LocalMongod) -> None:
        async with locked_out(mongod, name) as task:
            if is_abandoned:
                task.cancel()
            with trio.CancelScope(shield=True), working_for(BEFORE):
                await mongod.unanswered.wait_earlier_over()
                assert await is_under_way(mongod, name)
        while True:
            if await exists(mongod, name):
                break
            await trio.sleep(0.02)

    lone.run(check)


class SlowPool:
    """A pool in which waiting for a connection takes long enough for another reign to begin."""

    def __init__(self, later: Reign) -> None:
        self.reign = BEFORE
        self._later = later
        self.sent: list[bytes] = []
        self.is_closed = False
        self.hello: Mapping[str, Any] = {"topologyVersion": {"processId": 1}, "connectionId": 1}

    async def borrow(self) -> "SlowPool":
        await trio.lowlevel.checkpoint()
        self.reign = self._later
        return self

    def give_back(self, connection: "SlowPool") -> None:
        pass

    async def exchange(self, frame: bytes) -> bytes:
        self.sent.append(frame)
        return frame

    def __getitem__(self, _address: str) -> Pool:
        return cast("Pool", self)


@LATER
def test_nothing_is_sent_after_a_wait_in_which_the_reign_ended(later: Reign) -> None:
    pool = SlowPool(later)

    async def present_reign() -> Reign:
        return pool.reign

    mongod = LocalMongod(cast("ConnectionPools", pool), "/mongod", "m:1", present_reign)
    with pytest.raises(CommandError) as caught:
        trio.run(begin, mongod, "too_late")
    assert caught.value.code == ErrorCode.InterruptedDueToReplStateChange
    assert pool.sent == []
