"""The mongod's current ``hello`` with the daemons' addresses, its release, and the replies to clients' hello requests.

Shardwright uses commands between servers, which MongoDB may change from one release to the next without notice. The
wire versions in a mongod's hello identify its release. docs/upgrade.md lists the known differences of each release.
Only `TRIED` is tested.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import bson
import trio
from bson import Int64, ObjectId

from shardwright.daemon.sidecar.member_addresses import (
    SET_UP_ERROR,
    election_term,
    rewrite_hello,
    set_up_error,
    topology_of,
    unmapped_members,
    with_role,
)
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.wire import compression
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.hello import HELLO_NAMES, HelloRequest, TopologyVersion, await_budget_ms, parse_hello
from shardwright.wire.message import MORE_TO_COME, op_msg, reply_document
from shardwright.wire.rawbson import without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.replica_set import answered_before

Result = TypeVar("Result")

SILENT_PRIMARY: Final = "silentPrimary"
"""Our extra field of hello: the mongod of a primary whose daemon is silent, in this daemon's view."""

TRIED: Final = "6.0"
"""The release that every test runs on."""

_WIRE_VERSION_TRIED: Final = 17
_RELEASES: Final[Mapping[int, str]] = {
    13: "5.0",
    14: "5.1",
    15: "5.2",
    16: "5.3",
    _WIRE_VERSION_TRIED: TRIED,
    18: "6.1",
    19: "6.2",
    20: "6.3",
    21: "7.0",
    22: "7.1",
    23: "7.2",
    24: "7.3",
    25: "8.0",
}
"""Releases by their ``maxWireVersion``."""


class HelloMirror:
    """The state of the local mongod and its replica set.

    Args:
        extensions: the daemon's extensions of MongoDB's protocol, announced to routers in hello.
        cluster_role: ``shardsvr`` or ``configsvr``; the mongod itself has neither role.

    Attributes:
        hello: mongod's newest reply; None while mongod can't be reached.
        version: counts the changes that clients can see.
        silent_primary: the mongod of a primary whose daemon has not answered for long (`primary_watch`).
    """

    def __init__(
        self, mongod_address: str, sidecar_address: str, extensions: Sequence[str] = (), cluster_role: str = ""
    ) -> None:
        self.hello: Mapping[str, Any] | None = None
        self.version = TopologyVersion(ObjectId(), 0)
        self.term: int | None = None
        self.silent_primary: str | None = None
        self._own_fields = {"extensions": list(extensions)} if extensions else {}
        self._cluster_role = cluster_role
        self._own = {mongod_address: sidecar_address}
        self._sidecars: dict[str, str] = dict(self._own)
        self._seen: dict[str, Any] | None = None
        self._changed = trio.Event()
        self._primary_changed = trio.Event()
        self._quiesce_ends: float | None = None

    @property
    def sidecars(self) -> Mapping[str, str]:
        """The address of each daemon, by the address of its mongod."""
        return self._sidecars

    @property
    def other_members(self) -> list[str]:
        """The addresses of the set's other mongods that clients may read from; none while mongod is away."""
        hello = self.hello or {}
        return [each for each in (*hello.get("hosts", ()), *hello.get("passives", ())) if each != hello.get("me")]

    @property
    def unmapped_members(self) -> set[str]:
        """The mongods of the set without a registered daemon."""
        return unmapped_members(self.hello, self._sidecars) if self.hello else set()

    @property
    def set_up_error(self) -> str | None:
        """The reason why the mongod or its set does not fit the daemon; None if it does."""
        ((mongod, daemon),) = self._own.items()
        hello = self.hello
        return None if hello is None else release_refusal(hello) or set_up_error(hello, mongod, daemon)

    def observe(self, hello: Mapping[str, Any]) -> None:
        """Process a hello of mongod; an older one than the stored one is ignored, since replies may race.

        A hello of another mongod process is ignored too. It may have waited in a socket since that process ended.
        """
        known = self.hello
        if known is not None and known["topologyVersion"]["processId"] == hello["topologyVersion"]["processId"]:
            self.meet(hello)

    def meet(self, hello: Mapping[str, Any]) -> None:
        """Process a hello requested just now, which therefore comes from the running mongod process."""
        if not _is_older(hello, self.hello):
            self._know(hello)

    def lose(self) -> None:
        """Record that mongod can't be reached."""
        if self.hello is not None:
            self._know(None)

    def learn_sidecars(self, sidecars: Mapping[str, str]) -> None:
        """Adopt the registered addresses."""
        merged = {**sidecars, **self._own}
        if merged != self._sidecars:
            self._sidecars = merged
            self._publish()

    def present(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a hello of mongod to a client's view."""
        seen = with_role(rewrite_hello(hello, self._sidecars), self._cluster_role, hello)
        error = self.set_up_error
        failures = {SET_UP_ERROR: error, SILENT_PRIMARY: self.silent_primary}
        shown = {name: failure for name, failure in failures.items() if failure is not None}
        version = {"topologyVersion": self.version.document()}
        seen = seen | version if "topologyVersion" in seen else version | seen
        return {**seen, **self._own_fields, **shown}

    def current_reply(self, connection_id: int) -> dict[str, Any] | None:
        """Return the newest hello for a request that was not sent to mongod; None while mongod can't be reached.

        It has no cluster time: mongod signs the time for the client that it answers, and not at all for the daemon. A
        driver would gossip the time on behalf of a user, from whom a server with an earlier clock accepts only signed
        times.
        """
        if self.hello is None:
            return None
        reply = self.present(self.hello)
        for name in TIMES:
            reply.pop(name, None)
        reply["localTime"] = datetime.now(UTC)
        reply["connectionId"] = connection_id
        return reply

    def begin_quiesce(self, seconds: float) -> None:
        """Announce to clients that the daemon shuts down in some seconds, instead of mongod's state."""
        self._quiesce_ends = trio.current_time() + seconds
        self.version = self.version.bumped()
        self._announce_change()

    def check_not_quiescing(self) -> None:
        """Refuse a hello in quiesce mode (ShutdownInProgress), so that clients select another member."""
        if self._quiesce_ends is not None:
            left = max(0, int((self._quiesce_ends - trio.current_time()) * 1000))
            raise CommandError(
                ErrorCode.ShutdownInProgress,
                "The server is in quiesce mode and will shut down",
                extra={"topologyVersion": self.version.document(), "remainingQuiesceTimeMillis": Int64(left)},
            )

    async def wait_for_change(self) -> None:
        """Wait until a client would see a change, or mongod is lost or found."""
        await self._changed.wait()

    async def while_primary(self, primary: str, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a request to the primary of the set, which may be frozen.

        Args:
            ask: sends the request to it, or to the daemon in front of it.

        Raises:
            BackendError: the local mongod reports another primary, or none, or is lost itself.
        """
        return await answered_before(primary, ask, partial(self._wait_replaced, primary))

    async def _wait_replaced(self, primary: str) -> None:
        while _primary_of(self.hello) == primary:
            await self._primary_changed.wait()

    def _know(self, hello: Mapping[str, Any] | None) -> None:
        if _primary_of(hello) != _primary_of(self.hello):
            # Clients may not see the change, if the daemons of both members are still unknown.
            self._primary_changed.set()
            self._primary_changed = trio.Event()
        self.hello = hello
        self.term = election_term(hello) if hello is not None and hello.get("isWritablePrimary") else None
        self._publish()

    def _publish(self) -> None:
        seen = None if self.hello is None else topology_of(rewrite_hello(self.hello, self._sidecars))
        if seen == self._seen:
            return
        if seen is not None:
            self.version = self.version.bumped()
        self._seen = seen
        self._announce_change()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _primary_of(hello: Mapping[str, Any] | None) -> str | None:
    return None if hello is None else hello.get("primary")


def _is_older(hello: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    if known is None:
        return False
    version, known_version = hello["topologyVersion"], known["topologyVersion"]
    return bool(version["processId"] == known_version["processId"] and version["counter"] < known_version["counter"])


_OF_ONE_CLIENT: Final = frozenset({"saslSupportedMechs", "speculativeAuthenticate"})
"""Reply fields for the requesting client alone."""

__all__ = ["HELLO_NAMES", "answer_hello"]


async def answer_hello(
    mirror: HelloMirror, upstream: Upstream, client: ClientConnection, request: Request
) -> bytes | None:
    """Return the reply frame to a hello in any spelling; None if mongod is gone and there is nothing to report.

    Raises:
        CommandError: the request is malformed; ShutdownInProgress, the daemon is in quiesce mode.
        BackendError: mongod could not be queried.
    """
    message = request.message
    hello = parse_hello(request.body, request.fields, exhaust_allowed=message.is_exhaust_allowed)
    mirror.check_not_quiescing()
    if hello.topology_version is None:
        return await _ask_mongod(mirror, upstream, client, request, hello)
    request_id = message.request_id
    while True:
        client.allow_interruption()
        await _wait_for_news(mirror, hello)
        mirror.check_not_quiescing()
        body = mirror.current_reply(upstream.connection_id or client.id)
        if body is None:
            return None
        if request.name != "hello":
            body = {"ismaster" if name == "isWritablePrimary" else name: value for name, value in body.items()}
        if not hello.exhaust_allowed:
            return reply_document(request_id, body)
        hello = hello.following(mirror.version)
        reply_id = next_request_id()
        await client.send(op_msg(bson.encode(body), request_id=reply_id, response_to=request_id, flags=MORE_TO_COME))
        request_id = reply_id


async def _wait_for_news(mirror: HelloMirror, hello: HelloRequest) -> None:
    """Wait for a topology newer than the client's, as long as the client allows."""
    milliseconds = await_budget_ms(hello, mirror.version)
    if milliseconds is not None and mirror.hello is not None:
        with trio.move_on_after(milliseconds / 1000):
            await mirror.wait_for_change()


async def _ask_mongod(
    mirror: HelloMirror, upstream: Upstream, client: ClientConnection, request: Request, hello: HelloRequest
) -> bytes:
    # Compression is negotiated between client and daemon; it is useless on the UNIX socket.
    body = without(request.body, {b"compression"})
    frame = await upstream.forward(op_msg(body, request_id=request.message.request_id), 0)
    assert frame is not None
    reply = decode_reply(frame)
    if not reply.get("ok"):
        return frame
    if "isWritablePrimary" in reply:
        mirror.observe({name: value for name, value in reply.items() if name not in _OF_ONE_CLIENT})
    upstream.connection_id = reply.get("connectionId")
    if b"client" in request.fields:
        client.metadata = request.get(b"client")
    reply = mirror.present(reply)
    if hello.compression is not None:
        client.compressors = tuple(compression.negotiate(hello.compression))
        if client.compressors:
            reply["compression"] = list(client.compressors)
    return reply_document(request.message.request_id, reply)


def release_refusal(hello: Mapping[str, Any]) -> str | None:
    """Return the reason why a daemon cannot work with its mongod, and the remedy; None if it may be able to."""
    oldest, newest = _wire_versions(hello)
    if newest < _WIRE_VERSION_TRIED:
        return f"the mongod is of {_release(newest)}, and {TRIED} is needed; upgrade the mongod"
    if oldest > _WIRE_VERSION_TRIED:
        return (
            f"the mongod is of {_release(newest)} and no longer speaks as {TRIED} does (minWireVersion {oldest}); "
            f"install a mongod {TRIED}"
        )
    return None


def release_warning(hello: Mapping[str, Any]) -> str | None:
    """Return a warning about a mongod of an untested release; None for a tested one."""
    _, newest = _wire_versions(hello)
    if newest <= _WIRE_VERSION_TRIED:
        return None
    return (
        f"the mongod is of {_release(newest)}, and Shardwright was tried with {TRIED} only: read docs/upgrade.md "
        "before you use it for data that matter"
    )


def _release(wire_version: int) -> str:
    release = _RELEASES.get(wire_version)
    return f"MongoDB {release}" if release else f"an unknown release of MongoDB (maxWireVersion {wire_version})"


def _wire_versions(hello: Mapping[str, Any]) -> tuple[int, int]:
    return hello.get("minWireVersion", 0), hello.get("maxWireVersion", _WIRE_VERSION_TRIED)
