"""Authentication of clients at a sidecar, whose mongod verifies the passwords.

The sidecar reads the user of an attempt from a client's messages, and delays guesses as a router does. The mongod
refuses an unknown user at the first step of a conversation, which counts as a failure too.

Members of the cluster authenticate by certificate at the sidecar itself, because TLS ends there. It changes the mode by
which members authenticate together with its mongod.
"""

from base64 import b64decode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import trio

from shardwright.daemon.authentication import FailedLogIns, check_mechanism, name_in_certificate
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.users import UserName
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.message import OpMsg, reply_document
from shardwright.wire.rawbson import decode_document, is_string
from shardwright.wire.request import Request
from shardwright.wire.scram import ClientFirst, ScramError
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE, ClusterAuth

SASL_START: Final = "saslStart"
SASL_CONTINUE: Final = "saslContinue"
AUTHENTICATE: Final = "authenticate"
MODE: Final = "clusterAuthMode"

SPECULATIVE: Final = b"speculativeAuthenticate"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The beginning of an authentication conversation.

    Attributes:
        user: the user of a SCRAM conversation; None if the message is not SCRAM's as drivers send it.
        mechanism: the mechanism, unchecked.
    """

    user: UserName | None
    db: str
    mechanism: Any

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """Return the attempt that a request begins, separately or with a hello; None if it begins none.

        Raises:
            CommandError: as `Request.document`.
            InvalidBSONError: as `Request.document`.
        """
        if request.name == SASL_START:
            return cls._of_start(request.document, request.db)
        if request.name in HELLO_NAMES and SPECULATIVE in request.fields:
            speculative = request.get(SPECULATIVE)
            if isinstance(speculative, Mapping) and SASL_START in speculative:
                return cls._of_start(speculative, str(speculative.get("db")))
        return None

    @classmethod
    def _of_start(cls, start: Mapping[str, Any], db: str) -> Self:
        return cls(_user_of(start.get("payload"), db), db, start.get("mechanism"))


def _user_of(payload: object, db: str) -> UserName | None:
    try:
        message = b64decode(payload, validate=True) if is_string(payload) else payload
        return UserName(ClientFirst.parse(message).user, db) if isinstance(message, bytes) else None
    except (Error, ValueError, ScramError):
        return None


class Guesses:
    """Delays for the proofs of clients that have failed before."""

    def __init__(self) -> None:
        self._failed = FailedLogIns()

    async def wait(self, client: ClientConnection, upstream: Upstream, request: Request) -> None:
        """Record the user at the start of a log-in; wait before a proof is forwarded."""
        attempt = Attempt.of(request)
        if attempt is not None:
            upstream.attempt = attempt.user
        elif request.name == SASL_CONTINUE and upstream.attempt is not None and not upstream.attempt.is_internal:
            await trio.sleep(self._failed.delay_seconds(upstream.attempt, _address(client)))

    def note(self, client: ClientConnection, upstream: Upstream, request: Request, *, has_failed: bool) -> None:
        """Record the outcome of a log-in step."""
        if upstream.attempt is None or request.name not in (SASL_START, SASL_CONTINUE):
            return
        if has_failed:
            self._failed.note(upstream.attempt, _address(client))
            upstream.attempt = None
        elif request.name == SASL_CONTINUE:
            self._failed.forget(upstream.attempt, _address(client))


def _address(client: ClientConnection) -> str | None:
    return None if client.peer_address is None else client.peer_address[0]


async def log_in_member(
    cluster_auth: ClusterAuth, client: ClientConnection, upstream: Upstream, request: Request
) -> bytes:
    """Answer ``authenticate``; afterwards the client acts as a part of the cluster at the mongod too.

    Raises:
        CommandError: see `check_mechanism` and `name_in_certificate`; AuthenticationFailed, the certificate is not a
            member's, or the mongod refuses this daemon's; 5626701, another user is authenticated.
        BackendError: the mongod is gone.
    """
    arguments = Arguments.of(request)
    check_mechanism(arguments.string(b"mechanism"))
    name, becomes = name_in_certificate(cluster_auth, client, request.db, arguments.maybe_string(b"user"))
    if not becomes.is_internal:
        raise _not_here()
    await upstream.log_in()
    reply: dict[str, Any] = {"dbname": name.db, "user": name.user, "ok": 1.0}
    return reply_document(request.message.request_id, reply)


def without_certificate(request: Request) -> Request:
    """Remove a log-in by certificate from a request to the mongod.

    A hello loses it, as if the guess had failed, and the client then sends ``authenticate``.

    Raises:
        CommandError: MechanismUnavailable, it is a ``saslStart`` with this mechanism.
    """
    if request.name == AUTHENTICATE:
        return request  # answered by `log_in_member`
    if request.fields.get(b"mechanism") and request.get(b"mechanism") == WITH_CERTIFICATE:
        raise CommandError(
            ErrorCode.MechanismUnavailable,
            f"Unsupported mechanism '{WITH_CERTIFICATE}' on authentication database '{request.db}'",
        )
    if request.name not in HELLO_NAMES or SPECULATIVE not in request.fields:
        return request
    speculative = request.get(SPECULATIVE)
    if isinstance(speculative, dict) and (
        AUTHENTICATE in speculative or speculative.get("mechanism") == WITH_CERTIFICATE
    ):
        return request.without((SPECULATIVE,))
    return request


def without_any_certificate(request: Request) -> Request:
    """Refuse log-ins by certificate without access control (AuthenticationFailed or MechanismUnavailable)."""
    if request.name == AUTHENTICATE:
        raise _not_here()
    return without_certificate(request)


def _not_here() -> CommandError:
    return CommandError(
        ErrorCode.AuthenticationFailed, "TLS ends at this daemon: log in with a certificate at a router"
    )


async def change_mode_of_both(cluster_auth: ClusterAuth, upstream: Upstream, request: Request) -> bytes | None:
    """Forward a ``setParameter``, and adopt the mode that the mongod has accepted; return the reply.

    Raises:
        CommandError: BadValue, the daemon cannot adopt the mode, and the request is not forwarded.
        BackendError: the mongod is gone.
    """
    mode = request.get(MODE.encode())
    if mode is not None:
        cluster_auth.check_ability(mode)
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if mode is not None and reply is not None and decode_document(OpMsg(reply).body)["ok"]:
        cluster_auth.adopt_mode(mode)
    return reply
