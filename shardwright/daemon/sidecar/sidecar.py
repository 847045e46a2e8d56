"""The sidecar, which combines all parts that make a daemon look like its mongod.

A daemon creates one `Sidecar`, runs it in its main nursery, and calls it from its request handler for ``hello`` and for
forwarded requests.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.hello import HelloMirror, answer_hello
from shardwright.daemon.sidecar.member_addresses import ShownMembers, names_members, with_daemons, with_mongods
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.mongod_release import release_warning
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN, NoopWriter
from shardwright.daemon.sidecar.primary_watch import PrimaryWatch, hand_over
from shardwright.daemon.sidecar.registration import Registration
from shardwright.daemon.sidecar.role_certainty import RoleCertainty, RoleHooks, follow_role
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import with_body
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection, response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor
from shardwright.wire.transport.timeouts import TIMEOUTS, HelloTimeoutError, hello_within

logger = get_logger("daemon.sidecar")

_POLL_SECONDS: Final = 0.05

_REMINDER_SECONDS: Final = 10.0
_REMINDER_SECONDS_MAX: Final = 300.0
"""Pauses between the log lines about an absent mongod."""


class Sidecar:
    """One daemon in front of one mongod.

    Args:
        pools: the daemon's connection pools, which its owner runs.
        handshake: builds the hello for the handshake of the daemon's own connections.
        on_mongod_lost: called when the mongod is gone; must close the clients, as the mongod would have done.
        extensions: see `HelloMirror`.
        cluster_role: ``shardsvr`` or ``configsvr``, for ``getCmdLineOpts``.
    """

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
        self.mirror = HelloMirror(mongod_address, address, extensions)
        self.certainty = RoleCertainty(self.mirror, self._ask_hello)
        self.mongod = LocalMongod(pools, mongod_socket, mongod_address, self.certainty.present_term)
        self.address = address
        self._registration = Registration(self.mongod, self.mirror, address)
        self._primary_watch = PrimaryWatch(self.mongod, self.mirror, pools)
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
        return Upstream(self.mongod, client, self._check_mongod)

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
        if CLUSTER_AUTH.is_on and self.mirror.hello is None:
            await in_own_task()
            (await Connection.open(self.mongod.socket_path, handshake=self._handshake())).close()

    async def _ask_hello(self) -> Mapping[str, Any]:
        return await self.mongod.pool.command("admin", {"hello": 1})

    async def _follow_mongod(self) -> None:
        """Keep the mirror current with an awaitable hello that is always pending at the mongod.

        A mongod that does not answer in time gets a second hello, because this process may itself have been paused.
        """
        is_doubted = False
        while True:
            try:
                await self._follow_connection(TIMEOUTS.recheck_seconds if is_doubted else TIMEOUTS.hello_seconds)
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
            connection = await Connection.open(self.mongod.socket_path, handshake=self._handshake())
        try:
            self._meet_mongod(connection.hello)
            while True:
                self._report_set_up()
                version = self.mirror.hello and self.mirror.hello["topologyVersion"]
                with hello_within(connection.address, TIMEOUTS.hello_seconds):
                    hello = await connection.command(
                        "admin", {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": TIMEOUTS.await_ms}
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
