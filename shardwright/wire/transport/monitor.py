"""Monitoring the members of a replica set with hello: the sockets and timers around `wire.topology`.

Each known member is sent an awaitable hello, which it answers as soon as its state changes. So a step-up is noticed at
once, and an idle set costs next to nothing.

A host that is frozen or unplugged does not close its connections, so requests would wait for it indefinitely. A member
that does not answer in time is not selected any more. It has to answer another hello on a new connection within
`Timeouts.recheck_seconds`. The same applies to a primary as soon as another member has become primary, because its
requests may then succeed elsewhere. If the member remains silent it is lost, and all requests to it fail. The second
hello keeps a process that was itself paused from counting its peers as lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, Final

import trio

from shardwright.wire.errors import BackendError, CommandError, ConnectFailedError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.read_preference import (
    PRIMARY,
    ReadPreference,
    in_latency_window,
    least_busy_of_two,
    suitable_servers,
)
from shardwright.wire.topology import (
    ApplicationError,
    Failure,
    Server,
    ServerType,
    Topology,
    after_application_error,
    smoothed_round_trip,
)
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.pool import ConnectionPools

_OVERSLEPT_SECONDS: Final = 1.0
"""Delay beyond which a timeout proves nothing: this process was paused, and the answer may be waiting."""


class HelloTimeoutError(BackendError):
    """A host that did not answer a hello in time; it counts as silent only if this process was not paused."""


@contextmanager
def hello_within(address: str, seconds: float) -> Iterator[None]:
    """Limit the time for a hello in the block; raise HelloTimeoutError beyond it."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        is_silent = trio.current_time() - scope.deadline < _OVERSLEPT_SECONDS
        raise HelloTimeoutError(address, "did not answer a hello in time", sent=True, is_silent=is_silent)


logger = get_logger("wire.monitor")

_RETRY_SECONDS: Final = 0.5
"""Retry interval (the specification's ``minHeartbeatFrequencyMS``)."""

_ANY: Final = ReadPreference("nearest")


class _Contact(Enum):
    """State of the checks of a member that has answered before."""

    ANSWERS = auto()
    DOUBTFUL = auto()
    LOST = auto()


class ReplicaSetMonitor:
    """Monitor that keeps the state of one replica set current while `run` is running.

    Args:
        seeds: initial addresses, through which the other members are found.
        pools: the connections for operations, which are closed when a member turns out to be unreachable.

    Attributes:
        primary: the address of the primary, if one is known.
    """

    def __init__(
        self,
        set_name: str,
        seeds: Iterable[str],
        handshake: Callable[[], Mapping[str, Any]],
        pools: ConnectionPools,
    ) -> None:
        self.set_name = set_name
        self.topology = Topology.of(set_name, seeds)
        self.primary: str | None = None
        self._seeds = tuple(self.topology.servers)
        self._handshake = handshake
        self._pools = pools
        self._timeouts = pools.transport.timeouts
        self._changed = trio.Event()
        self._tasks: dict[str, trio.CancelScope] = {}
        self._check_now: dict[str, trio.Event] = {}
        self._contacts: dict[str, _Contact] = {}
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    @property
    def members(self) -> Mapping[str, Server]:
        """The members and possible members, by address."""
        return self.topology.servers

    @property
    def connection_string(self) -> str:
        """``set/host:port,host:port`` with the currently known members, or else the seeds, in a stable order."""
        return f"{self.set_name}/{','.join(sorted(self.members or self._seeds))}"

    def description(self) -> dict[str, Any]:
        """Return the set as ``connPoolStats`` shows it."""
        return {"hosts": [_description(server) for _, server in sorted(self.members.items())]}

    def may_be_at(self, addresses: Iterable[str]) -> bool:
        """Whether another process's addresses can belong to this set.

        They can if one of them is a member, or if they equal the seeds. Others belong to a newer set of the same name,
        for example after a shard was removed and added again.
        """
        others = tuple(addresses)
        return others == self._seeds or not self.members.keys().isdisjoint(others)

    async def run(self) -> None:
        """Monitor the members until cancelled or stopped.

        If all of them turn out to belong to another set, start again from the seeds.
        """
        with self._scope:
            try:
                await self._run()
            finally:
                for address, contact in self._contacts.items():
                    if contact is _Contact.LOST:
                        self._pools.resume(address)

    def stop(self) -> None:
        """End `run`, or keep it from beginning."""
        self._scope.cancel()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._follow_members()
            while True:
                while self.members:
                    await self._changed.wait()
                await trio.sleep(_RETRY_SECONDS)
                self._advance(Topology.of(self.set_name, self._seeds))

    async def wait_for_primary(self) -> str:
        """Wait for a primary and return its address. The caller limits the wait."""
        while self.primary is None:
            await self._changed.wait()
        return self.primary

    async def wait_for_member(self, preference: ReadPreference) -> str:
        """Wait for a member that may serve a read and return its address. The caller limits the wait."""
        while True:
            address = self.select(preference)
            if address is not None:
                return address
            await self._changed.wait()

    def select(self, preference: ReadPreference = PRIMARY) -> str | None:
        """Return a member that may serve a read now: the less busy of two random nearby ones, or None."""
        if preference.mode == "primary":
            return self.primary
        near = in_latency_window(suitable_servers(self.topology, preference))
        return least_busy_of_two(near, self._pools.in_use).address if near else None

    def readable(self) -> Sequence[str]:
        """Return the addresses of all members that may serve reads now, the primary first."""
        return [server.address for server in suitable_servers(self.topology, _ANY)]

    async def wait_replaced(self, address: str) -> None:
        """Wait until another member is primary, or there has been none for `Timeouts.selection_seconds`."""
        while True:
            with trio.move_on_after(self._timeouts.selection_seconds):
                await self.wait_for_primary()
            if self.primary != address:
                return
            await self._changed.wait()

    @property
    def next_change(self) -> trio.Event:
        """Event for the next state change of any member."""
        return self._changed

    async def wait_for_change(self) -> None:
        """Wait until the state of any member changes."""
        await self._changed.wait()

    def on_error(self, address: str, error: BackendError | CommandError | RemoteProtocolError) -> None:
        """Handle the failure of an operation; if it implies that a member's state has changed, check the member now.

        A connection that could not be opened counts as an unanswered hello, because callers would not try another
        member.
        """
        server = self.members.get(address)
        if isinstance(error, ConnectFailedError):
            topology = self.topology.after_failed_check(address, str(error))
        else:
            topology = after_application_error(self.topology, _application_error(address, error))
        if topology is not self.topology:
            self._advance(topology)
            if server is not None and server.is_known:  # otherwise it is being checked
                self._check(address, is_doubted=not isinstance(error, CommandError))

    def _follow_members(self) -> None:
        """Start monitoring new members, and stop monitoring former ones."""
        for address in self._tasks.keys() - self.members.keys():
            self._tasks.pop(address).cancel()
            if self._contacts.pop(address, None) is _Contact.LOST:
                self._pools.resume(address)
        if self._nursery is not None:
            for address in self.members.keys() - self._tasks.keys():
                scope = self._tasks[address] = trio.CancelScope()
                self._nursery.start_soon(self._follow, address, scope)

    async def _follow(self, address: str, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                self._check_now[address] = trio.Event()
                try:
                    with trio.CancelScope() as attempt:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._restart_on_demand, address, attempt)
                            await self._ask_repeatedly(address)
                except* (BackendError, CommandError, RemoteProtocolError) as failures:
                    await self._after_failed_check(address, failures.exceptions[0])
                except* Exception as failures:
                    logger.exception("Internal error while monitoring a replica set member", remote=address)
                    await self._after_failed_check(address, failures.exceptions[0])

    async def _after_failed_check(self, address: str, error: BaseException) -> None:
        """Record an unanswered hello, and wait until the next one is due."""
        if not self._on_failed_check(address, error):
            with trio.move_on_after(_RETRY_SECONDS):
                await self._check_now[address].wait()

    def _check(self, address: str, *, is_doubted: bool) -> None:
        """Send another hello to a member on a new connection, now."""
        if is_doubted and self._contacts.get(address) is _Contact.ANSWERS:
            self._contacts[address] = _Contact.DOUBTFUL
        check = self._check_now.get(address)
        if check is not None:
            check.set()

    async def _restart_on_demand(self, address: str, attempt: trio.CancelScope) -> None:
        await self._check_now[address].wait()
        attempt.cancel()

    async def _ask_repeatedly(self, address: str) -> None:
        started = trio.current_time()
        is_doubtful = self._contacts.get(address) is _Contact.DOUBTFUL
        with hello_within(address, self._timeouts.recheck_seconds if is_doubtful else self._timeouts.hello_seconds):
            connection = await Connection.open(self._pools.transport, address, handshake=self._handshake())
        try:
            self._on_hello(address, connection.hello, trio.current_time() - started)
            while True:
                command: dict[str, Any] = {"hello": 1}
                version = connection.hello.get("topologyVersion")
                if version is not None:
                    command |= {"topologyVersion": version, "maxAwaitTimeMS": self._timeouts.await_ms}
                else:
                    await trio.sleep(_RETRY_SECONDS)  # a member that cannot be waited on is polled
                with hello_within(address, self._timeouts.hello_seconds):
                    connection.hello = await connection.command("admin", command)
                self._on_hello(address, connection.hello, None)
        finally:
            connection.close()

    def _on_failed_check(self, address: str, error: BaseException) -> bool:
        """Record an unanswered hello; return whether another one is due at once: the member had answered before.

        If the second hello remains unanswered too, the member is lost, even if another one has already replaced it.
        """
        if address not in self.members:
            return False
        self._advance(self.topology.after_failed_check(address, str(error)))
        contact = self._contacts.get(address)
        if contact is _Contact.ANSWERS:
            self._contacts[address] = _Contact.DOUBTFUL
            return True
        if contact is _Contact.DOUBTFUL:
            self._contacts[address] = _Contact.LOST
            logger.warning("Lost a replica set member", replica_set=self.set_name, remote=address, error=str(error))
        if contact is not None and isinstance(error, BackendError) and error.is_silent:
            # Otherwise its process has ended or is about to, which also closes its connections.
            self._pools.break_off(address, "the host does not answer")
        return False

    def _on_hello(self, address: str, hello: Mapping[str, Any], sample_seconds: float | None) -> None:
        previous = self.members.get(address)
        if previous is None:
            return
        round_trip = previous.round_trip_seconds
        if sample_seconds is not None:
            round_trip = smoothed_round_trip(round_trip, sample_seconds)
        now_ms = int(trio.current_time() * 1_000)
        server = Server.from_hello(address, hello, now_ms=now_ms, round_trip_seconds=round_trip)
        if self._contacts.get(address) is _Contact.LOST:
            logger.info("Found a replica set member again", replica_set=self.set_name, remote=address)
            self._pools.resume(address)
        self._contacts[address] = _Contact.ANSWERS
        self._advance(self.topology.after_hello(server))

    def _advance(self, topology: Topology) -> None:
        """Adopt a new state and act on it."""
        before, self.topology = self.topology, topology
        if topology is before:
            return
        if before.is_compatible and not topology.is_compatible:
            logger.error("A replica set supports no wire version known to this daemon", replica_set=self.set_name)
        primary = topology.primary if topology.is_compatible else None
        self.primary = primary.address if primary is not None else None
        for address, server in topology.servers.items():
            if address in before.servers and server.pool_generation > before.servers[address].pool_generation:
                self._pools.close_idle(address)
        for address, server in before.servers.items():
            if server.type is ServerType.PRIMARY and self.primary not in (None, address):
                self._check(address, is_doubted=True)
        self._follow_members()
        self._changed.set()
        self._changed = trio.Event()


def _application_error(address: str, error: BackendError | CommandError | RemoteProtocolError) -> ApplicationError:
    if isinstance(error, CommandError):
        version = error.extra.get("topologyVersion")
        return ApplicationError(address, Failure.COMMAND, code=error.code, topology_version=version)
    return ApplicationError(address, Failure.NETWORK)


_ANSWERING: Final = (ServerType.PRIMARY, ServerType.SECONDARY, ServerType.ARBITER, ServerType.OTHER)


def _description(server: Server) -> dict[str, Any]:
    return {
        "addr": server.address,
        "ok": server.type in _ANSWERING,
        "ismaster": server.type is ServerType.PRIMARY,
        "hidden": False,
        "secondary": server.type is ServerType.SECONDARY,
        "pingTimeMillis": int((server.round_trip_seconds or 0) * 1000),
        **({"tags": dict(server.tags)} if server.tags else {}),
    }
