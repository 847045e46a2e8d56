"""Monitoring a replica set: elections, members that come and go, primaries that are not accepted."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from math import inf
from typing import Any

import trio
import trio.testing
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request
from shardwright.wire.topology import ServerType
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.transport import Timeouts
from tests.transports import new_transport
from tests.wire.transport.serving import Serving, serving


def hello() -> dict[str, Any]:
    return {"hello": 1, "$db": "admin"}


class FakeMember:
    """A member that answers hello with a given state, at once when it changes."""

    def __init__(self) -> None:
        self._process = ObjectId()
        self._counter = 0
        self._state: dict[str, Any] = {}
        self._changed = trio.Event()

    def become(self, **state: Any) -> None:  # noqa: ANN401 - fields of hello
        self._counter += 1
        self._state = {"setName": "rs", "maxWireVersion": 17, **state}
        self._changed.set()
        self._changed = trio.Event()

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        client.allow_interruption()
        known = request.get(b"topologyVersion")
        if known is not None and known["counter"] == self._counter:
            with trio.move_on_after(request.get(b"maxAwaitTimeMS") / 1000):
                await self._changed.wait()
        version = {"processId": self._process, "counter": Int64(self._counter)}
        return {**self._state, "topologyVersion": version, "ok": 1.0}


class FakeSet:
    """A replica set of fake members."""

    def __init__(self, members: list[FakeMember], servers: list[Serving]) -> None:
        self.members = members
        self.servers = servers
        self.hosts = [server.address for server in servers]

    def elect(self, number: int, *, term: int, **fields: Any) -> None:  # noqa: ANN401 - fields of hello
        """Make a member primary; it reports its election id."""
        election = {"electionId": ObjectId(f"7fffffff{term:016x}"), "setVersion": 1}
        self.members[number].become(**{"isWritablePrimary": True, "hosts": self.hosts, **election, **fields})

    def follow(self, number: int) -> None:
        """Make a member secondary."""
        self.members[number].become(isWritablePrimary=False, secondary=True, hosts=self.hosts)


async def with_fake_set(
    size: int,
    scenario: Callable[[FakeSet, ReplicaSetMonitor], Awaitable[None]],
    timeouts: Timeouts | None = None,
) -> None:
    """Run a scenario with a set whose member 0 is primary and whose monitor knows just one seed."""
    async with AsyncExitStack() as stack:
        members = [FakeMember() for _ in range(size)]
        servers = [await stack.enter_async_context(serving(member.answer)) for member in members]
        fake = FakeSet(members, servers)
        fake.elect(0, term=1)
        for number in range(1, size):
            fake.follow(number)
        pools = ConnectionPools(new_transport(timeouts=timeouts), hello)
        monitor = ReplicaSetMonitor("rs", fake.hosts[-1:], hello, pools)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.run)
            await wait_for(monitor, lambda: monitor.primary == fake.hosts[0] and len(known(monitor)) == size)
            await scenario(fake, monitor)
            nursery.cancel_scope.cancel()


def known(monitor: ReplicaSetMonitor) -> list[str]:
    return sorted(member.address for member in monitor.members.values() if member.is_known)


async def wait_for(monitor: ReplicaSetMonitor, condition: Callable[[], bool]) -> None:
    while not condition():
        await monitor.wait_for_change()


def test_all_members_are_found_from_one_seed() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        assert sorted(monitor.members) == sorted(fake.hosts)
        assert monitor.connection_string == f"rs/{','.join(sorted(fake.hosts))}"
        assert monitor.select(ReadPreference("secondary")) in fake.hosts[1:]

    trio.run(with_fake_set, 3, scenario)


def test_an_election_is_noticed_when_it_happens() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.follow(0)
        fake.elect(1, term=2)
        await wait_for(monitor, lambda: monitor.primary == fake.hosts[1])

    trio.run(with_fake_set, 3, scenario)


def test_who_waits_for_a_primary_hears_that_it_was_replaced() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.wait_replaced, fake.hosts[0])
            fake.follow(0)
            await wait_for(monitor, lambda: monitor.primary is None)
            fake.elect(0, term=2)
            await wait_for(monitor, lambda: monitor.primary == fake.hosts[0])
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks
            fake.follow(0)
            fake.elect(1, term=3)

    trio.run(with_fake_set, 3, scenario, Timeouts(selection_seconds=inf))


def test_nobody_waits_for_ever_for_a_set_without_a_primary() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.follow(0)
        await monitor.wait_replaced(fake.hosts[0])
        assert monitor.primary is None

    trio.run(with_fake_set, 3, scenario, Timeouts(selection_seconds=0.05))


def test_a_primary_of_an_older_election_is_not_accepted() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.elect(1, term=2)
        await wait_for(monitor, lambda: monitor.primary == fake.hosts[1])
        fake.elect(0, term=1)
        fake.follow(2)
        await wait_for(monitor, lambda: monitor.members[fake.hosts[2]].type is ServerType.SECONDARY)
        assert monitor.primary == fake.hosts[1]

    trio.run(with_fake_set, 3, scenario)


def test_a_member_that_the_primary_no_longer_lists_is_dropped() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.elect(0, term=1, hosts=fake.hosts[:2])
        await wait_for(monitor, lambda: sorted(monitor.members) == sorted(fake.hosts[:2]))

    trio.run(with_fake_set, 3, scenario)


def test_a_member_of_another_set_is_not_used() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.members[0].become(isWritablePrimary=True, setName="other", hosts=fake.hosts)
        await wait_for(monitor, lambda: monitor.primary is None)

    trio.run(with_fake_set, 2, scenario)


def test_a_dead_member_is_no_longer_primary() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        await fake.servers[0].server.drain(0)
        await wait_for(monitor, lambda: monitor.primary is None)

    trio.run(with_fake_set, 2, scenario)


def test_extensions_of_members_are_known() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.elect(0, term=1, extensions=["newField"])
        await wait_for(monitor, lambda: monitor.members[fake.hosts[0]].extensions == {"newField"})
        assert not monitor.members[fake.hosts[1]].extensions

    trio.run(with_fake_set, 2, scenario)


def test_a_member_that_refuses_a_write_is_checked_at_once() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        monitor.on_error(fake.hosts[0], CommandError(ErrorCode.NotWritablePrimary, "not primary"))
        assert monitor.primary is None
        await wait_for(monitor, lambda: monitor.primary == fake.hosts[0])

    trio.run(with_fake_set, 2, scenario)


def test_an_error_from_before_the_last_hello_changes_nothing() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        version = monitor.members[fake.hosts[0]].topology_version
        error = CommandError(ErrorCode.NotWritablePrimary, "not primary", extra={"topologyVersion": version})
        monitor.on_error(fake.hosts[0], error)
        assert monitor.primary == fake.hosts[0]

    trio.run(with_fake_set, 2, scenario)


def test_a_broken_connection_closes_the_idle_ones() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        before = monitor.members[fake.hosts[0]].pool_generation
        monitor.on_error(fake.hosts[0], BackendError(fake.hosts[0], "closed the connection", sent=True))
        assert monitor.members[fake.hosts[0]].pool_generation == before + 1
        await wait_for(monitor, lambda: monitor.primary == fake.hosts[0])

    trio.run(with_fake_set, 2, scenario)


def test_a_set_without_members_is_looked_for_at_its_seeds_again() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        for member in fake.members:
            member.become(isWritablePrimary=True, setName="other", hosts=fake.hosts)
        await wait_for(monitor, lambda: not monitor.members)
        fake.elect(0, term=2)
        fake.follow(1)
        await wait_for(monitor, lambda: monitor.primary == fake.hosts[0])

    trio.run(with_fake_set, 2, scenario)


def test_a_primary_that_lists_no_members_leaves_the_seeds_in_the_connection_string() -> None:
    async def scenario(fake: FakeSet, monitor: ReplicaSetMonitor) -> None:
        fake.elect(0, term=1, hosts=[])
        await wait_for(monitor, lambda: not monitor.members)
        assert monitor.connection_string == f"rs/{fake.hosts[-1]}"

    trio.run(with_fake_set, 2, scenario)
