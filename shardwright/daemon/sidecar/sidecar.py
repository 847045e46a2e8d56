"""The sidecar: all parts that make a daemon look like its mongod, and their options.

A daemon creates one `Sidecar`, runs it in its main nursery, and calls it from its request handler for ``hello`` and for
forwarded requests.

The replicated collection ``config.sidecars`` of each set maps mongods to daemons. Its documents are
``{_id: "<mongod host:port>", sidecar: "<daemon host:port>"}``. Each daemon writes its own, through the primary mongod
of its set, and reads the others from its own mongod.
"""

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.audit_log import AuditLog, check_audit
from shardwright.daemon.backoff import Backoff
from shardwright.daemon.logs import DaemonLogs
from shardwright.daemon.option_values import known_address
from shardwright.daemon.sidecar.hello import HelloMirror, answer_hello, release_warning
from shardwright.daemon.sidecar.member_addresses import ShownMembers, names_members, with_daemons, with_mongods
from shardwright.daemon.sidecar.mongod import LocalMongod, Upstream
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN, NoopWriter
from shardwright.daemon.sidecar.primary_watch import PrimaryWatch, hand_over
from shardwright.daemon.sidecar.role_certainty import RoleCertainty, RoleHooks, follow_role
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError, check_writes
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.logger import get_logger
from shardwright.wire.message import with_body
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection, response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.monitor import HelloTimeoutError, hello_within
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

logger = get_logger("daemon.sidecar")

REGISTRATIONS: Final = "sidecars"

# A secondary is not notified when a document has been replicated, so the collection is polled: frequently while the
# daemon of a member is unknown, otherwise occasionally, in case a daemon has moved to another address.
_INCOMPLETE_SECONDS: Final = 0.2
_COMPLETE_SECONDS: Final = 10.0

_POLL_SECONDS: Final = 0.05

_REMINDER_SECONDS: Final = 10.0
_REMINDER_SECONDS_MAX: Final = 300.0
"""Pauses between the log lines about an absent mongod."""


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """The options that the sidecars have in common.

    Attributes:
        address: ``host:port`` at which clients reach the daemon.
        mongod_address: its mongod in the replica set's configuration: ``host:port``, or the path of a UNIX socket.
        audit: the audit log; None if auditing is off.
    """

    address: str
    mongod_socket: str
    mongod_address: str
    slow_ms: int
    audit: AuditLog | None = None
    logs: DaemonLogs = field(default_factory=DaemonLogs)

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "SidecarOptions":
        """Read the options from the parsed command line and its audit log."""
        logs = DaemonLogs(None if audit is None else audit.file)
        return cls(known_address(parsed), parsed.mongod_socket, parsed.mongod_address, parsed.slow_ms, audit, logs)


def check_sidecar_options(parsed: argparse.Namespace) -> None:
    """Refuse options that do not fit together.

    A daemon on loopback must not register with members that may be on other machines. MongoDB's rule for the addresses
    of a set is the same: all of them are loopback, or none. An audit log needs access control, because without it users
    cannot be distinguished from routers.

    Raises:
        ValueError: they do not, with a message for the operator.
    """
    address = known_address(parsed)
    is_elsewhere = "/" not in parsed.mongod_address and not HostAndPort.parse(parsed.mongod_address).is_localhost
    if is_elsewhere and HostAndPort.parse(address).is_localhost:
        raise ValueError(
            f"other machines cannot reach this daemon at {address}, as they reach its mongod at "
            f"{parsed.mongod_address}: give --bind-ip another address than loopback, or --advertise HOST[:PORT]"
        )
    if parsed.audit_destination is not None and parsed.key_file is None and parsed.cluster_auth_mode is None:
        raise ValueError(
            "--audit-destination needs access control (--key-file or --cluster-auth-mode), without which this daemon "
            "cannot tell users from routers; routers have an audit log of their own"
        )
    check_audit(parsed)


def secured_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """Return the mongod's sockets that require TLS."""
    return (parsed.mongod_socket,) if parsed.mongod_tls else ()


class _Registration:
    """The upkeep of this daemon's document and of the mirror's addresses."""

    def __init__(self, mongod: LocalMongod, mirror: HelloMirror, address: str) -> None:
        self._mongod = mongod
        self._mirror = mirror
        self._address = address

    async def run(self) -> None:
        """Register and follow the others until cancelled."""
        while True:
            is_complete = False
            if self._mirror.hello is not None:
                try:
                    is_complete = await self._synchronise()
                except (BackendError, CommandError) as error:
                    # Before the set is initiated and during elections; the next hello triggers another attempt.
                    logger.debug("Could not read or write the registrations", error=str(error))
            with trio.move_on_after(_COMPLETE_SECONDS if is_complete else _INCOMPLETE_SECONDS):
                await self._mirror.wait_for_change()

    async def _synchronise(self) -> bool:
        """Read, and if necessary write, the collection; return whether the daemons of all members are registered."""
        registered = await self._read()
        self._mirror.learn_sidecars(registered)
        if registered.get(self._mongod.address) != self._address:
            await self._register()
            return False
        return not self._mirror.unmapped_members

    async def _read(self) -> dict[str, str]:
        reply = await self._mongod.command(
            "config",
            {"find": REGISTRATIONS, "$readPreference": {"mode": "nearest"}, "batchSize": 1000, "singleBatch": True},
        )
        return {document["_id"]: document["sidecar"] for document in reply["cursor"]["firstBatch"]}

    async def _register(self) -> None:
        hello: Any = self._mirror.hello
        primary = hello and hello.get("primary")
        if primary is None:
            return
        update = {"q": {"_id": self._mongod.address}, "u": {"$set": {"sidecar": self._address}}, "upsert": True}
        pool = self._mongod.pool_of_member(primary)
        command = {"update": REGISTRATIONS, "updates": [update]}
        reply = await self._mirror.while_primary(primary, partial(pool.command, "config", command))
        check_writes(reply)
        logger.info("Registered with the replica set", mongod=self._mongod.address, sidecar=self._address)


class Sidecar:
    """One daemon in front of one mongod.

    Args:
        pools: the daemon's connection pools, which its owner runs.
        handshake: builds the hello for the handshake of the daemon's own connections.
        on_mongod_lost: called when the mongod is gone; must close the clients, as the mongod would have done.
        extensions: see `HelloMirror`.
        cluster_role: ``shardsvr`` or ``configsvr``, for ``hello`` and ``getCmdLineOpts``.

    Attributes:
        transport: the transport of all connections of the daemon.
        upstream_type: the class of clients' connections to the mongod.
    """

    upstream_type: type[Upstream] = Upstream

    def __init__(
        self,
        pools: ConnectionPools,
        *,
        mongod_socket: str,
        mongod_address: str,
        address: str,
        handshake: Callable[[], Mapping[str, Any]],
        on_mongod_lost: Callable[[], None],
        cluster_role: str,
        extensions: Sequence[str] = (),
    ) -> None:
        self.transport = pools.transport
        self._timeouts = pools.transport.timeouts
        self.mirror = HelloMirror(mongod_address, address, extensions, cluster_role)
        self.certainty = RoleCertainty(self.mirror, self._ask_hello)
        self.mongod = LocalMongod(pools, mongod_socket, mongod_address, self.certainty.present_reign)
        self.address = address
        self._registration = _Registration(self.mongod, self.mirror, address)
        self._primary_watch = PrimaryWatch(self.mongod, self.mirror, pools, self._timeouts)
        self._noop_writer = NoopWriter(self.mongod, self.mirror)
        self._handshake = handshake
        self._on_mongod_lost = on_mongod_lost
        self._cluster_role = cluster_role
        self._absence = _Absence()
        self._set_up_error: str | None = None
        self._release_warning: str | None = None
        self._was_refused = False

    @property
    def is_primary(self) -> bool:
        """Whether the local mongod is primary."""
        return self.term is not None

    @property
    def term(self) -> int | None:
        """The term in which the local mongod is primary; None if it is not."""
        return self.mirror.term

    @property
    def is_ready(self) -> bool:
        """Whether mongod answers and has a role in a set that fits the daemon's options."""
        return self.not_ready_reason() is None

    def not_ready_reason(self) -> str | None:
        """Return the reason why the mongod cannot be used at the moment; None if it can."""
        hello = self.mirror.hello
        if hello is None or not (hello.get("isWritablePrimary") or hello.get("secondary")):
            return "mongod cannot be reached or has no role in its set yet"
        return self.mirror.set_up_error

    def open_upstream(self, client: ClientConnection) -> Upstream:
        """Create the relay for a client that has connected."""
        return self.upstream_type(self.mongod, client, self._check_mongod)

    async def answer_hello(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Answer a hello, see `daemon.sidecar.hello`.

        Raises:
            CommandError: the request is malformed.
            BackendError: mongod could not be queried.
        """
        reply = await answer_hello(self.mirror, upstream, client, request)
        if reply is None:
            client.is_finished = True
        return reply

    async def name_daemons(self, request: Request, run: Callable[[Request], Awaitable[bytes | None]]) -> bytes | None:
        """Run a command, translating addresses of members in it and in its reply; errors as `run`."""
        if not names_members(request):
            return await run(request)
        shown = ShownMembers(self.address, self.mirror.sidecars, self._cluster_role)
        reply = await run(with_mongods(request, shown))
        return reply and with_body(reply, with_daemons(request, response_body(reply), shown))

    def has_to_prepare(self, request: Request) -> bool:
        """Whether `prepare` has anything to do; once it has not, it never has."""
        return READ_CONCERN in request.fields and self._noop_writer.has_to_reach(request)

    def has_reached(self, frame: bytes, at: int) -> bool:
        """Whether a request that waits for the time in the 8 bytes at an offset of its frame needs no `prepare`."""
        return self._noop_writer.has_reached(frame, at)

    @may_run_in_reactor
    async def prepare(self, request: Request) -> None:
        """Prepare a request before it is forwarded to the mongod, see `daemon.sidecar.noop_writer`."""
        if self.has_to_prepare(request):
            await in_own_task()
            await self._noop_writer.reach(request)

    def note_reply(self, reply: bytes) -> None:
        """Record the time in a reply to a client, if the mongod is primary, see `NoopWriter.note_reply`."""
        if self.mirror.term is not None:
            self._noop_writer.note_reply(reply)

    async def begin_term(self, term: int) -> None:
        """Record the time at which a term begins; errors as for `NoopWriter.begin_term`."""
        await self._noop_writer.begin_term(term)

    def acknowledged_time(self) -> Timestamp | None:
        """Return the time of the last write that this primary has acknowledged; None if that is not certain."""
        return self._noop_writer.acknowledged_time(self.term) if self.certainty.is_certain else None

    async def run(self, hooks: RoleHooks) -> None:
        """Follow the mongod and its set until cancelled, calling `hooks` at step-up and step-down."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_mongod)
            nursery.start_soon(self._registration.run)
            nursery.start_soon(self._primary_watch.run)
            nursery.start_soon(self.certainty.run)
            nursery.start_soon(follow_role, self.mirror, self.certainty, hooks)

    async def begin_shutdown(self, seconds: float) -> None:
        """Hand over to another member if primary, within `seconds`, then begin quiesce mode for `seconds`."""
        with trio.move_on_after(seconds):
            await hand_over(self.mirror, self.mongod, seconds)
        self.mirror.begin_quiesce(seconds)

    @may_run_in_reactor
    async def _check_mongod(self) -> None:
        """Under access control, check that the mongod accepts the cluster's key, unless this daemon is connected to it.

        A mongod without access control would grant every client all privileges.

        Raises:
            BackendError: it does not accept the key, or is not there.
        """
        if self.transport.cluster_auth.is_on and self.mirror.hello is None:
            await in_own_task()
            (await Connection.open(self.transport, self.mongod.socket_path, handshake=self._handshake())).close()

    async def _ask_hello(self) -> Mapping[str, Any]:
        return await self.mongod.pool.command("admin", {"hello": 1})

    async def _follow_mongod(self) -> None:
        """Keep the mirror current with an awaitable hello that is always pending at the mongod.

        A mongod that does not answer in time gets a second hello, because this process may itself have been paused.
        """
        is_doubted = False
        while True:
            try:
                seconds = self._timeouts.recheck_seconds if is_doubted else self._timeouts.hello_seconds
                await self._follow_connection(seconds)
            except (BackendError, CommandError, RemoteProtocolError) as error:
                is_doubted = isinstance(error, HelloTimeoutError) and not is_doubted
                if is_doubted:
                    continue
                if self.mirror.hello is not None:
                    self._lose_mongod(error)
                else:
                    self._absence.note(self.mongod.socket_path, error)
                if isinstance(error.__cause__, CommandError) and not self._was_refused:
                    self._was_refused = True
                    logger.error("The mongod does not know the key of this cluster", error=str(error))
            # There is no notification when a mongod comes back, so its socket is polled.
            await trio.sleep(_POLL_SECONDS)

    def _lose_mongod(self, error: BackendError | CommandError | RemoteProtocolError) -> None:
        logger.warning("Lost the mongod", error=str(error))
        self.mirror.lose()
        if isinstance(error, BackendError) and error.is_silent:
            self.mongod.pool.break_off("the mongod does not answer")
        else:
            self.mongod.pool.close_idle()
        self._on_mongod_lost()
        self._absence.begin()

    def _meet_mongod(self, hello: Mapping[str, Any]) -> None:
        if self.mirror.hello is None:
            self._absence.end(self.mongod.socket_path)
        self.mongod.pool.resume()
        self.mirror.meet(hello)

    async def _follow_connection(self, seconds: float) -> None:
        with hello_within(self.mongod.socket_path, seconds):
            connection = await Connection.open(self.transport, self.mongod.socket_path, handshake=self._handshake())
        try:
            self._meet_mongod(connection.hello)
            while True:
                self._report_set_up()
                version = self.mirror.hello and self.mirror.hello["topologyVersion"]
                with hello_within(connection.address, self._timeouts.hello_seconds):
                    hello = await connection.command(
                        "admin", {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": self._timeouts.await_ms}
                    )
                self.mirror.observe(hello)
        finally:
            connection.close()

    def _report_set_up(self) -> None:
        """Log a set-up that cannot work, and a mongod of an untested release, once."""
        warning = None if self.mirror.hello is None else release_warning(self.mirror.hello)
        if warning is not None and warning != self._release_warning:
            logger.warning("This mongod was not tried", error=warning)
        self._release_warning = warning or self._release_warning
        error = self.mirror.set_up_error
        if error != self._set_up_error:
            self._set_up_error = error
            if error is not None:
                logger.error("The mongod or its set does not fit this daemon", error=error)


class _Absence:
    """The log lines about an absent mongod, at once and then at growing intervals, and about its return."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._due = 0.0
        self._reminders = Backoff(_REMINDER_SECONDS, _REMINDER_SECONDS_MAX, random_fraction=lambda: 1.0)

    def begin(self) -> None:
        """Record that the mongod was lost; the caller has logged it."""
        self._since = trio.current_time()
        self._reminders.reset()
        self._due = self._since + self._reminders.next_seconds()

    def note(self, path: str, error: Exception) -> None:
        """Log a failed attempt, if it is the first one or a reminder is due."""
        now = trio.current_time()
        if self._since is None:
            self.begin()
        elif now < self._due:
            return
        else:
            self._due = now + self._reminders.next_seconds()
        absent = round(now - (self._since or now), 1)
        logger.warning("The mongod cannot be reached", mongod=path, absent_seconds=absent, error=str(error))

    def end(self, path: str) -> None:
        """Log that the mongod answers."""
        absent = 0.0 if self._since is None else round(trio.current_time() - self._since, 1)
        self._since = None
        logger.info("Reached the mongod", mongod=path, absent_seconds=absent)
