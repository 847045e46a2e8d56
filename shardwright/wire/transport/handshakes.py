"""Handshakes of both sides, which cost a peer that is slow, silent or broken its own connection alone.

The arithmetic, a millisecond and more, is done in threads, a few at a time, so that other clients need not wait for it
even when many connect at once.
"""

import socket
import ssl
from contextlib import suppress
from typing import Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.transport.tls_socket import TlsSocket

_READ_BYTES: Final = 16_384
_THREADS: Final = trio.CapacityLimiter(2)


class TlsHandshakeError(OSError):
    """A handshake failed; the message says why, without the peer's name."""


async def accept_handshake(connected: socket.socket, context: ssl.SSLContext, *, received: bytes = b"") -> TlsSocket:
    """The handshake with a client.

    Args:
        connected: the socket, which is closed if this fails.
        context: of servers.
        received: what was already read from it.

    Raises:
        TlsHandshakeError: it failed, or the client has no certificate and needs one.
    """
    shaken = await _shake_hands(connected, context, is_server=True, received=received)
    is_asked = context.verify_mode != ssl.CERT_NONE
    if is_asked and not TLS.settings.allows_connections_without_certificates and shaken.peer_subject is None:
        shaken.close()
        raise TlsHandshakeError("no SSL certificate provided by peer; connection rejected")
    return shaken


async def dial_handshake(connected: socket.socket, context: ssl.SSLContext, host: str | None) -> TlsSocket:
    """The handshake with a server.

    Args:
        connected: the socket, which is closed if this fails.
        context: of clients.
        host: the name or address that the server's certificate must be for; None behind a UNIX socket.

    Raises:
        TlsHandshakeError: it failed.
    """
    return await _shake_hands(connected, context, host=host)


async def _shake_hands(
    connected: socket.socket,
    context: ssl.SSLContext,
    *,
    is_server: bool = False,
    host: str | None = None,
    received: bytes = b"",
) -> TlsSocket:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(received)
    try:
        engine = context.wrap_bio(incoming, outgoing, server_side=is_server, server_hostname=host)
        while not await _advance(engine, connected, outgoing):
            await wait_readable(connected)
            try:
                data = connected.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                raise TlsHandshakeError("the peer closed the connection during the TLS handshake")
            incoming.write(data)
    except BaseException as error:
        connected.close()
        if isinstance(error, TlsHandshakeError) or not isinstance(error, (OSError, ValueError)):
            raise
        raise TlsHandshakeError(f"TLS handshake failed: {_reason(error)}") from error
    return TlsSocket(connected, engine, incoming, outgoing)


async def _advance(engine: ssl.SSLObject, connected: socket.socket, outgoing: ssl.MemoryBIO) -> bool:
    """Process what has arrived, and answer it; returns whether that was the end.

    Raises:
        ssl.SSLError: it was wrong; the peer is told so if it takes that now.
        OSError: the connection broke.
    """
    is_done = True
    try:
        await trio.to_thread.run_sync(engine.do_handshake, limiter=_THREADS)
    except ssl.SSLWantReadError:
        is_done = False
    except ssl.SSLError:
        with suppress(OSError):
            connected.send(outgoing.read())
        raise
    await _send_all(connected, outgoing.read())
    return is_done


async def _send_all(connected: socket.socket, data: bytes) -> None:
    while data:
        await wait_writable(connected)
        with suppress(BlockingIOError):
            data = data[connected.send(data) :]


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"SSL peer certificate validation failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)
