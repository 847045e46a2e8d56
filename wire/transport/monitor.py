"""Who is primary: following the members of a replica set through their hello.

Each known member is asked with an awaitable hello, which it answers as soon as its state changes, so a step-up is known
at once and an idle set costs next to nothing. The rules for believing a primary are those of MongoDB's server discovery
and monitoring specification (SDAM).
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import trio

from wire.errors import BackendError, CommandError, RemoteProtocolError
from wire.read_preference import PRIMARY, Member, ReadPreference
from wire.transport.client import Connection
from wire.transport.timeouts import TIMEOUTS

logger = logging.getLogger("wire.monitor")

_RETRY_SECONDS: Final = 0.5
_ROUND_TRIP_WEIGHT: Final = 0.2


class ReplicaSetMonitor:
    """Keeps the state of one replica set current while `run` is running.

    Args:
        set_name: the name that members must report.
        seeds: addresses to begin with; the others are found through them.
        handshake: makes the hello to greet members with.
        on_member_down: called with the address of a member that stopped answering.
    """

    def __init__(
        self,
        set_name: str,
        seeds: Iterable[str],
        handshake: Callable[[], Mapping[str, Any]],
        *,
        on_member_down: Callable[[str], None] | None = None,
    ) -> None:
        self.set_name = set_name
        self.members: dict[str, Member] = {address: Member(address) for address in seeds}
        self.primary: str | None = None
        self._seeds = tuple(self.members)
        self._handshake = handshake
        self._on_member_down = on_member_down
        self._changed = trio.Event()
        self._newest_election: tuple[bytes, int] = (b"", 0)
        self._tasks: dict[str, trio.CancelScope] = {}
        self._check_now: dict[str, trio.Event] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def connection_string(self) -> str:
        """``set/host:port,host:port`` of the members known now, in a stable order."""
        return f"{self.set_name}/{','.join(sorted(self.members))}"

    async def run(self) -> None:
        """Follow the members until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for address in self._seeds:
                self._start(address)
            await trio.sleep_forever()

    async def wait_for_primary(self) -> str:
        """The address of the primary, waiting until there is one. The caller bounds the wait."""
        while self.primary is None:
            await self._changed.wait()
        return self.primary

    async def wait_for_member(self, preference: ReadPreference) -> str:
        """The address of a member that may serve a read, waiting until there is one. The caller bounds the wait."""
        while True:
            address = self.select(preference)
            if address is not None:
                return address
            await self._changed.wait()

    def select(self, preference: ReadPreference = PRIMARY) -> str | None:
        """The address of a member that may serve a read now, a random one of those equally good."""
        if preference.mode == "primary":
            return self.primary
        candidates = preference.candidates(self.members.values())
        return random.choice(candidates).address if candidates else None

    async def wait_for_change(self) -> None:
        """Return when the state of any member changes."""
        await self._changed.wait()

    def mark_failed(self, address: str) -> None:
        """Someone met an error that says ``address`` is not what it was: forget its state and ask it again now."""
        member = self.members.get(address)
        if member is not None and member.kind != "unknown":
            self._update(Member(address, round_trip_seconds=member.round_trip_seconds))
        check = self._check_now.get(address)
        if check is not None:
            check.set()

    def _start(self, address: str) -> None:
        assert self._nursery is not None
        if address not in self._tasks:
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
                    self._on_failure(address, failures.exceptions[0])
                    with trio.move_on_after(_RETRY_SECONDS):
                        await self._check_now[address].wait()

    async def _restart_on_demand(self, address: str, attempt: trio.CancelScope) -> None:
        await self._check_now[address].wait()
        attempt.cancel()

    async def _ask_repeatedly(self, address: str) -> None:
        started = trio.current_time()
        connection = await Connection.open(address, handshake=self._handshake())
        try:
            self._on_hello(address, connection.hello, trio.current_time() - started)
            while True:
                command: dict[str, Any] = {"hello": 1}
                version = connection.hello.get("topologyVersion")
                if version is not None:
                    command |= {"topologyVersion": version, "maxAwaitTimeMS": TIMEOUTS.await_ms}
                else:
                    await trio.sleep(_RETRY_SECONDS)  # a member that cannot be waited on is polled
                with trio.move_on_after(TIMEOUTS.hello_seconds) as deadline:
                    connection.hello = await connection.command("admin", command)
                if deadline.cancelled_caught:
                    raise BackendError(address, "did not answer a hello in time", sent=True)
                self._on_hello(address, connection.hello, None)
        finally:
            connection.close()

    def _on_failure(self, address: str, error: BaseException) -> None:
        member = self.members.get(address)
        if member is None:
            return
        if member.kind != "unknown":
            logger.warning("Lost a replica set member", extra={"remote": address, "error": str(error)})
            if self._on_member_down is not None:
                self._on_member_down(address)
        self._update(Member(address))

    def _on_hello(self, address: str, hello: Mapping[str, Any], round_trip_seconds: float | None) -> None:
        previous = self.members.get(address)
        if previous is None:
            return
        if hello.get("setName") != self.set_name:
            self._update(Member(address))
            return
        if round_trip_seconds is None:
            round_trip_seconds = previous.round_trip_seconds
        elif previous.round_trip_seconds:
            round_trip_seconds = (
                _ROUND_TRIP_WEIGHT * round_trip_seconds + (1 - _ROUND_TRIP_WEIGHT) * previous.round_trip_seconds
            )
        kind = "secondary" if hello.get("secondary") else "other"
        if hello.get("isWritablePrimary"):
            election = (hello["electionId"].binary if "electionId" in hello else b"", hello.get("setVersion", 0))
            # A deposed primary that has not noticed yet reports an older election.
            kind = "primary" if election >= self._newest_election else "unknown"
            self._newest_election = max(election, self._newest_election)
        last_write = hello.get("lastWrite", {}).get("lastWriteDate")
        self._update(
            Member(
                address,
                kind,
                hello.get("tags", {}),
                round_trip_seconds,
                last_write.timestamp() if last_write is not None else 0.0,
                frozenset(hello.get("extensions", ())),
            )
        )
        if kind == "primary":
            self._adopt(address, {*hello.get("hosts", ()), *hello.get("passives", ()), *hello.get("arbiters", ())})
        else:
            for host in hello.get("hosts", ()):
                self._add(host)

    def _adopt(self, primary: str, hosts: set[str]) -> None:
        """Only a primary's list of hosts is the truth: add those that are new, drop those that are not in it."""
        for host in hosts:
            self._add(host)
        for address, member in list(self.members.items()):
            if address not in hosts:
                self._tasks.pop(address).cancel()
                del self.members[address]
                self._notify()
            elif member.kind == "primary" and address != primary:
                self._update(Member(address, round_trip_seconds=member.round_trip_seconds))

    def _add(self, address: str) -> None:
        if address not in self.members:
            self.members[address] = Member(address)
            self._start(address)
            self._notify()

    def _update(self, member: Member) -> None:
        if self.members.get(member.address) == member:
            return
        self.members[member.address] = member
        self._notify()

    def _notify(self) -> None:
        self.primary = next((member.address for member in self.members.values() if member.kind == "primary"), None)
        self._changed.set()
        self._changed = trio.Event()
