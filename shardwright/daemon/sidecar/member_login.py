"""Log-in of cluster members by certificate, and changes of the mode by which members authenticate."""

from typing import Any, Final

from shardwright.daemon.certificate_names import check_mechanism, name_in_certificate
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.message import OpMsg, reply_document
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH, WITH_CERTIFICATE

AUTHENTICATE: Final = "authenticate"
SPECULATIVE: Final = b"speculativeAuthenticate"


async def log_in_member(client: ClientConnection, upstream: Upstream, request: Request) -> bytes:
    """Answer ``authenticate``; afterwards the client acts as a part of the cluster at the mongod too.

    Raises:
        CommandError: see `check_mechanism` and `name_in_certificate`; AuthenticationFailed, the certificate is not a
            member's, or the mongod refuses this daemon's; 5626701, another user is authenticated.
        BackendError: the mongod is gone.
    """
    arguments = Arguments.of(request)
    check_mechanism(arguments.string(b"mechanism"))
    name, becomes = name_in_certificate(client, request.db, arguments.maybe_string(b"user"))
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


MODE: Final = "clusterAuthMode"


async def change_mode_of_both(upstream: Upstream, request: Request) -> bytes | None:
    """Forward a ``setParameter``, and adopt the mode that the mongod has accepted; return the reply.

    Raises:
        CommandError: BadValue, the daemon cannot adopt the mode, and the request is not forwarded.
        BackendError: the mongod is gone.
    """
    mode = request.get(MODE.encode())
    if mode is not None:
        CLUSTER_AUTH.check_ability(mode)
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if mode is not None and reply is not None and decode_document(OpMsg(reply).body)["ok"]:
        CLUSTER_AUTH.adopt_mode(mode)
    return reply
