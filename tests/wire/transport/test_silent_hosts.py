"""Hosts that are frozen or unplugged: they are noticed, and what waits for them fails."""

import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.wire.errors import BackendError, ConnectFailedError, ConnectionClosedError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.monitor import ReplicaSetMonitor, hello_within
from shardwright.wire.transport.pool import ConnectionPools, PoolOptions
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.stream import CLIENT_LIMITS, SERVER_LIMITS, FrameStream
from shardwright.wire.transport.transport import Timeouts
from tests.transports import new_transport
from tests.wire.transport.serving import answer_ok, serving
from tests.wire.transport.test_monitor import FakeMember, FakeSet, hello, wait_for

SECONDARY = ReadPreference("secondary")
RECHECK_SECONDS = 0.2


def request() -> bytes:
    return op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=next_request_id())


class FreezableMember(FakeMember):
    """A member that can be frozen: then it accepts connections, as its kernel does, and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.thawed = trio.Event()
        self.thawed.set()
        self.waiting = 0

    def freeze(self) -> None:
        self.thawed = trio.Event()

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        client.allow_interruption()
        if request.name == "hello":
            reply = await super().answer(client, request)
        else:
            self.waiting += 1
            await trio.sleep(0 if request.get(b"ping") == "quick" else inf)
            reply = {"ok": 1.0}
        await self.thawed.wait()
        return reply


def impatient_pools(*arguments: Any, hello_seconds: float = 0.4, **named: Any) -> ConnectionPools:  # noqa: ANN401
    """Create pools with short timeouts."""
    timeouts = Timeouts(hello_seconds=hello_seconds, recheck_seconds=RECHECK_SECONDS)
    return ConnectionPools(new_transport(timeouts=timeouts), hello, *arguments, **named)


class Scene:
    """A set with freezable members, and a client of it."""

    def __init__(self, fake: FakeSet, members: list[FreezableMember], client: ReplicaSetClient) -> None:
        self.fake = fake
        self.members = members
        self.client = client
        self.failures: list[BackendError] = []
        self.failed = trio.Event()

    async def fail(self, number: int) -> None:
        """Send a request, and keep the error with which it ends."""
        with pytest.raises(BackendError) as caught:
            await self.client.exchange_with(self.fake.hosts[number], request())
        self.failures.append(caught.value)
        self.failed.set()

    async def wait_in_progress(self, number: int, count: int = 1) -> None:
        while self.members[number].waiting < count:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def scene(size: int, pools: ConnectionPools | None = None) -> AsyncIterator[Scene]:
    members = [FreezableMember() for _ in range(size)]
    pools = pools or impatient_pools()
    async with trio.open_nursery() as nursery:
        servers = [await start_serving(nursery, member.answer) for member in members]
        fake = FakeSet(list(members), servers)
        fake.elect(0, term=1)
        for number in range(1, size):
            fake.follow(number)
        monitor = ReplicaSetMonitor("rs", fake.hosts, hello, pools)
        nursery.start_soon(pools.run)
        nursery.start_soon(monitor.run)
        await wait_for(monitor, lambda: all(each.is_known for each in monitor.members.values()))
        yield Scene(fake, members, ReplicaSetClient(monitor, pools))
        nursery.cancel_scope.cancel()


async def start_serving(nursery: trio.Nursery, answer: Callable[..., Awaitable[Any]]) -> Any:  # noqa: ANN401
    async def serve(task_status: trio.TaskStatus[Any]) -> None:
        async with serving(answer) as served:
            task_status.started(served)
            await trio.sleep_forever()

    return await nursery.start(serve)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "replica set member" in each.getMessage()]


def test_requests_to_a_frozen_member_fail_and_it_is_not_selected_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with scene(2) as set_up, trio.open_nursery() as nursery:
            monitor = set_up.client.monitor
            nursery.start_soon(set_up.fail, 1)
            await set_up.wait_in_progress(1)
            set_up.members[1].freeze()
            await wait_for(monitor, lambda: monitor.select(SECONDARY) is None)
            await set_up.failed.wait()
            assert isinstance(set_up.failures[0], ConnectionClosedError)
            assert set_up.failures[0].sent
            assert "the host does not answer" in str(set_up.failures[0])
            # Operations with a cursor there would wait for a new connection.
            await set_up.fail(1)
            assert isinstance(set_up.failures[1], ConnectFailedError)
            set_up.members[1].thawed.set()
            await wait_for(monitor, lambda: monitor.select(SECONDARY) is not None)
            async with trio.open_nursery() as requests:
                requests.start_soon(set_up.client.exchange_with, set_up.fake.hosts[1], request())
                await set_up.wait_in_progress(1, 2)
                requests.cancel_scope.cancel()

    with caplog.at_level(logging.INFO):
        trio.run(main)
    assert messages(caplog) == ["Lost a replica set member", "Found a replica set member again"]
    first = next(each for each in caplog.records if each.getMessage() == "Lost a replica set member")
    assert vars(first)["fields"]["replica_set"] == "rs"


def test_a_frozen_primary_is_lost_as_soon_as_it_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Long before its own hello is overdue."""

    async def main() -> None:
        async with scene(3, impatient_pools(hello_seconds=1000.0)) as set_up, trio.open_nursery() as nursery:
            nursery.start_soon(set_up.fail, 0)
            await set_up.wait_in_progress(0)
            set_up.members[0].freeze()
            await trio.testing.wait_all_tasks_blocked()
            assert not set_up.failures
            set_up.fake.elect(1, term=2)
        assert set_up.failures[0].sent

    with caplog.at_level(logging.INFO):
        trio.run(main)
    assert messages(caplog) == ["Lost a replica set member"]


def test_a_request_that_reads_from_a_frozen_member_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The member that has the request is well, and stays a member."""

    async def main() -> None:
        async with scene(2) as set_up:
            monitor, client = set_up.client.monitor, set_up.client
            reader, source = set_up.fake.hosts
            early = await client.ask(reader, request())
            early.reads_from([client._pools[source]])
            set_up.members[1].freeze()
            with pytest.raises(ConnectionClosedError, match="the host does not answer") as caught:
                await early.receive_whole()
            assert caught.value.address == source
            client.on_failure(reader, caught.value)
            assert monitor.primary == reader
            late = await client.ask(reader, request())
            late.reads_from([client._pools[source]])
            with pytest.raises(ConnectionClosedError, match="the host does not answer"):
                await late.receive_whole()
            assert not client._pools[source].has_readers
            assert client._pools[reader].in_use == 0

    with caplog.at_level(logging.INFO):
        trio.run(main)
    assert messages(caplog) == ["Lost a replica set member"]


async def test_a_pool_is_kept_while_other_hosts_read_from_its_host() -> None:
    async with serving(answer_ok) as served:
        pools = impatient_pools(PoolOptions(connections_min=0, idle_seconds_max=0.0))
        source = pools["source:1"]
        asked = await pools[served.address].ask(request())
        asked.reads_from([source])
        pools._reap(trio.current_time() + 1.0)
        assert pools["source:1"] is source
        await asked.receive_whole()
        pools._reap(trio.current_time() + 1.0)
        assert pools["source:1"] is not source
        pools[served.address].close()


def test_a_former_primary_that_answers_keeps_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene(3) as set_up, trio.open_nursery() as nursery:
            monitor = set_up.client.monitor
            nursery.start_soon(set_up.fail, 0)
            await set_up.wait_in_progress(0)
            set_up.fake.elect(1, term=2)
            await wait_for(monitor, lambda: monitor.primary == set_up.fake.hosts[1])
            set_up.fake.follow(0)
            await wait_for(monitor, lambda: monitor.members[set_up.fake.hosts[0]].is_known)
            await trio.sleep(2 * RECHECK_SECONDS)
            assert not set_up.failures
            set_up.client._pools.break_off(set_up.fake.hosts[0], "the test is over")

    trio.run(main)
    assert not messages(caplog)


def test_a_former_primary_that_falls_silent_later_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene(3) as set_up, trio.open_nursery() as nursery:
            monitor = set_up.client.monitor
            set_up.fake.elect(1, term=2)
            await wait_for(monitor, lambda: monitor.primary == set_up.fake.hosts[1])
            # It still takes itself for the primary, so nothing is known of it.
            await trio.sleep(RECHECK_SECONDS)
            assert not monitor.members[set_up.fake.hosts[0]].is_known
            nursery.start_soon(set_up.fail, 0)
            await set_up.wait_in_progress(0)
            set_up.members[0].freeze()

    trio.run(main)
    assert messages(caplog) == ["Lost a replica set member"]


async def test_requests_of_a_member_that_shuts_down_are_left_alone() -> None:
    """It refuses connections, and answers the requests that are running."""

    async with scene(2) as set_up:
        monitor = set_up.client.monitor
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_up.client.exchange_with, set_up.fake.hosts[1], request())  # raises no error
            await set_up.wait_in_progress(1)
            nursery.start_soon(set_up.fake.servers[1].server.drain, 3 * RECHECK_SECONDS)
            await wait_for(monitor, lambda: monitor.select(SECONDARY) is None)


async def test_a_process_that_was_paused_itself_loses_no_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its limits are over when it continues, but the other hosts may have been paused with it."""
    monkeypatch.setattr(
        "shardwright.wire.transport.monitor._OVERSLEPT_SECONDS", -1.0
    )  # as if every limit were noticed too late

    async with scene(2) as set_up, trio.open_nursery() as nursery:
        monitor = set_up.client.monitor
        nursery.start_soon(set_up.fail, 1)
        await set_up.wait_in_progress(1)
        set_up.members[1].freeze()
        await wait_for(monitor, lambda: monitor.select(SECONDARY) is None)
        await trio.sleep(2 * RECHECK_SECONDS)
        assert not set_up.failures
        set_up.members[1].thawed.set()
        await wait_for(monitor, lambda: monitor.select(SECONDARY) is not None)
        assert not set_up.failures
        set_up.client._pools.break_off(set_up.fake.hosts[1], "the test is over")


async def test_a_limit_that_is_noticed_late_is_not_silence(autojump_clock: trio.testing.MockClock) -> None:
    async def say_nothing(seconds_asleep: float) -> None:
        with hello_within("host:1", 5):
            autojump_clock.jump(seconds_asleep)
            await trio.sleep_forever()

    for seconds, is_silent in ((0.0, True), (60.0, False)):
        with pytest.raises(BackendError) as caught:
            await say_nothing(seconds)
        assert caught.value.is_silent is is_silent


async def test_those_who_wait_for_a_connection_to_a_silent_host_are_told() -> None:
    followers = impatient_pools()
    pools = impatient_pools(PoolOptions(connections_max=2), followers=[followers])
    async with scene(2, pools) as set_up, trio.open_nursery() as nursery:
        address = set_up.fake.hosts[1]
        nursery.start_soon(set_up.fail, 1)
        await set_up.wait_in_progress(1)
        set_up.members[1].freeze()
        nursery.start_soon(set_up.fail, 1)  # opens a connection, on which the handshake is not answered
        nursery.start_soon(set_up.fail, 1)  # waits for one of these two
        while pools.statistics()[address].waiting == 0:
            await trio.lowlevel.checkpoint()
        with pytest.raises(BackendError):
            await followers[address].exchange(request())
    assert [each.sent for each in set_up.failures].count(True) == 1
    assert len(set_up.failures) == 3
    assert pools.statistics()[address].in_use == 0


async def test_a_connection_that_was_broken_off_is_not_lent_again() -> None:
    async with serving(answer_ok) as served:
        pool = impatient_pools()[served.address]
        connection = await pool.borrow()
        pool.break_off("gone")
        with pytest.raises(ConnectFailedError):
            await pool.exchange(request())
        pool.resume()
        pool.give_back(connection)
        assert pool.statistics().available == pool.statistics().in_use == 0
        await pool.exchange(request())
        assert pool.statistics().available == 1
        pool.close()


async def test_a_reply_that_is_broken_off_in_its_middle_is_a_broken_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = Connection(new_transport(), "host:1", FrameStream(ours))
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ConnectionClosedError, match="gone"):
                    await connection.exchange(request())

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"\x40\0\0\0 and so on")
            await trio.testing.wait_all_tasks_blocked()
            connection.break_off("gone")
        assert connection.is_closed


@pytest.mark.parametrize(("number", "is_silent"), [(errno.EHOSTUNREACH, True), (errno.ECONNREFUSED, False)])
def test_a_host_that_refuses_is_not_silent(number: int, *, is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object) -> None:
        raise OSError(number, "no")

    async def main() -> None:
        with pytest.raises(ConnectFailedError) as caught:
            await Connection.open(new_transport(), "host:1")
        assert caught.value.is_silent is is_silent

    monkeypatch.setattr("shardwright.wire.transport.client._connect", connect)
    trio.run(main)


def options_of(connected: socket.socket) -> tuple[int, ...]:
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return tuple(connected.getsockopt(socket.IPPROTO_TCP, name) for name in names)


async def test_the_kernel_watches_both_ends_of_tcp_connections() -> None:
    async with serving(answer_ok) as served:
        connection = await Connection.open(new_transport(), served.address, handshake=hello())
        assert options_of(connection.socket) == (10, 5, 4, 20_000)
        assert options_of(served.handler.opened[0].stream.socket) == (30, 10, 12, 120_000)
        assert SERVER_LIMITS.unanswered < CLIENT_LIMITS.unanswered
        connection.close()


def test_a_malformed_hello_is_a_failed_check(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene(2) as set_up:
            monitor = set_up.client.monitor
            set_up.members[1].become(secondary=True, hosts=7)
            await wait_for(monitor, lambda: monitor.select(SECONDARY) is None)
            set_up.fake.follow(1)
            await wait_for(monitor, lambda: monitor.select(SECONDARY) is not None)

    with caplog.at_level(logging.ERROR):
        trio.run(main)
    assert "Internal error while monitoring a replica set member" in [each.getMessage() for each in caplog.records]
