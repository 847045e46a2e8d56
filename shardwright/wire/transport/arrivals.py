"""What happens to an accepted connection before its first request: the decision for TLS, and the handshake.

One port takes both kinds, as in MongoDB: the first bytes of a plain client are the header of a request, in which the
id of an answered request is 0 or -1. Anything else begins a handshake.
"""

import socket
from typing import Final

import trio
from trio.lowlevel import wait_readable

from shardwright.wire.frames import HEADER_BYTES, Header
from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH
from shardwright.wire.transport.handshakes import TlsHandshakeError, accept_handshake
from shardwright.wire.transport.stream import FrameStream

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""How long a client may take from the connection to the end of the handshake."""

_ANSWERS_NOTHING: Final = frozenset({0, -1})


def needs_greeting(accepted: socket.socket) -> bool:
    """Whether `greet` has to be called: with TLS.

    UNIX sockets belong to this user alone, so that TLS is there for nothing but the certificates of members.
    """
    return TLS.accepting is not None and (accepted.family != socket.AF_UNIX or CLUSTER_AUTH.accepts_certificate)


async def greet(accepted: socket.socket, peer: str) -> ClientConnection | None:
    """Find out whether a client uses TLS, and shake hands; None if it left before it sent anything.

    Args:
        accepted: its socket, which is closed if this fails.
        peer: its address.

    Raises:
        TlsHandshakeError: the handshake failed or took too long, or the client must use TLS and does not.
    """
    accepted.setblocking(False)
    try:
        with trio.fail_after(HANDSHAKE_SECONDS_MAX):
            return await _greet(accepted, peer)
    except BaseException as error:
        accepted.close()
        if isinstance(error, trio.TooSlowError):
            raise TlsHandshakeError(f"the client took more than {HANDSHAKE_SECONDS_MAX:g} s to shake hands") from error
        raise


async def _greet(accepted: socket.socket, peer: str) -> ClientConnection | None:
    beginning = await _receive_header(accepted)
    if not beginning:
        accepted.close()
        return None
    if len(beginning) == HEADER_BYTES and Header(beginning).response_to in _ANSWERS_NOTHING:
        if not TLS.settings.mode.accepts_plain and accepted.family != socket.AF_UNIX:
            raise TlsHandshakeError("The server is configured to only allow SSL connections")
        return ClientConnection(FrameStream(accepted, received=beginning), peer)
    context = TLS.accepting
    assert context is not None, "TLS cannot be turned off"
    secured = await accept_handshake(accepted, context, received=beginning)
    client = ClientConnection(FrameStream(secured), peer)
    client.certificate_subject = secured.peer_subject
    return client


async def _receive_header(accepted: socket.socket) -> bytes:
    """The first bytes, as many as a header has; fewer if the client closes."""
    beginning = b""
    while len(beginning) < HEADER_BYTES:
        await wait_readable(accepted)
        try:
            received = accepted.recv(HEADER_BYTES - len(beginning))
        except BlockingIOError:
            continue
        if not received:
            break
        beginning += received
    return beginning
