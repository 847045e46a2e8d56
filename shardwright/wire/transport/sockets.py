"""Non-blocking sockets: encrypted ones with the calls of a plain socket, and sockets that the reactor watches.

**TLS** (`TlsSocket`). All available bytes are read from the kernel, not record by record, so that a message costs as
many system calls as without TLS. As with a plain socket, a short read means that nothing more has arrived.

A peer that is slow, silent or broken during the handshake affects only its own connection. The arithmetic of a
handshake, a millisecond and more, runs in threads, a few at a time. So other clients need not wait for it even when
many connect at once.

**The reactor's sockets** (`ReactorSocket`), plain or with TLS. The reactor notifies once for all data that has arrived,
so the socket remembers whether there may be more to read.

Frames are written only after everything received by this process has been processed. Each peer is then woken once for
all of its frames, and a woken peer does not take the processor from us while there are more frames for it.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from shardwright.wire.tls import ProcessTls, Subject
from shardwright.wire.transport.reactor import HANG_UP, REACTOR, in_own_task, may_run_in_reactor, until_resumed

_READ_BYTES: Final = 65_536
_WRITE_BYTES: Final = 1 << 18
"""Plain bytes encrypted at once, so that a long reply is not in memory twice."""

_POSTED_BYTES_MAX: Final = 1 << 16
"""Longest frame that is posted. Longer ones are sent at once, because their peer can start working on them."""


class TlsSocket:
    """A connected socket after the handshake. Methods raise OSError if the connection broke.

    Args:
        connected: the non-blocking socket, which it owns.
        engine: the session, with encrypted bytes in ``incoming`` and ``outgoing``.

    Attributes:
        plain: the socket itself, for code that watches it.
        may_have_unread: whether received bytes may hold data that was not read yet. The kernel does not report these
            any more.
    """

    __slots__ = ("_engine", "_incoming", "_is_in_part_sent", "_outgoing", "_unsent", "may_have_unread", "plain")

    def __init__(
        self, connected: socket.socket, engine: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self.plain = connected
        self._engine = engine
        self._incoming = incoming
        self._outgoing = outgoing
        self._unsent = b""
        self._is_in_part_sent = False
        self.may_have_unread = bool(incoming.pending)

    @property
    def peer_subject(self) -> Subject | None:
        """The name in the peer's verified certificate; None if it has sent none, or none was requested."""
        certificate: Any = self._engine.getpeercert()
        return certificate["subject"] if certificate else None

    @property
    def version(self) -> str:
        """The version of TLS, such as ``TLSv1.3``."""
        return str(self._engine.version())

    def recv(self, size: int) -> bytes:
        """Receive up to ``size`` bytes; none if the peer has closed. Raises BlockingIOError if nothing has arrived."""
        pieces: list[bytes] = []
        has_more = True
        while size:
            if self.may_have_unread:
                piece = self._decrypt(size)
                if piece is None:
                    break
                if piece:
                    pieces.append(piece)
                    size -= len(piece)
                continue
            if not has_more:
                break
            try:
                received = self.plain.recv(_READ_BYTES)
            except BlockingIOError:
                break
            if not received:
                return b"".join(pieces)
            has_more = len(received) == _READ_BYTES
            self._incoming.write(received)
            self.may_have_unread = True
        else:
            return b"".join(pieces)
        if pieces or self.may_have_unread:  # the latter: the peer has sent its close notification
            return b"".join(pieces)
        raise BlockingIOError

    def recv_into(self, buffer: memoryview) -> int:
        """Receive like `recv`, into a buffer; return the number of bytes."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        """Write as much as the kernel takes; return the number of bytes. The rest must be sent next.

        Raises BlockingIOError if the kernel takes nothing.
        """
        if self._unsent and not self._write_unsent():
            raise BlockingIOError
        done = int(self._is_in_part_sent)
        self._is_in_part_sent = False
        view = memoryview(data)
        while done < len(view):
            end = min(len(view), done + _WRITE_BYTES)
            while done < end:
                done += self._engine.write(view[done:end])
            self._unsent = self._outgoing.read()
            if not self._write_unsent():
                # The last byte counts as sent only with the rest of its record, so that the caller comes back.
                self._is_in_part_sent = True
                return done - 1
        return done

    def shutdown(self, how: int) -> None:
        """Shut down as a plain socket does, without a TLS message."""
        self.plain.shutdown(how)

    def close(self) -> None:
        """Send a close notification, if the peer accepts it now, and close."""
        if not self._unsent:
            with suppress(OSError):
                try:
                    self._engine.unwrap()
                except ssl.SSLWantReadError:
                    self.plain.send(self._outgoing.read())
        self.plain.close()

    def _decrypt(self, size: int) -> bytes | None:
        """Decrypt data of one record; empty if there is no whole record; None after the peer's close notification."""
        try:
            piece = self._engine.read(size)
        except ssl.SSLWantReadError:
            self.may_have_unread = False
            return b""
        except ssl.SSLZeroReturnError:
            return None
        if not piece:
            return None
        self.may_have_unread = bool(self._engine.pending() or self._incoming.pending)
        return piece

    def _write_unsent(self) -> bool:
        """Write encrypted bytes; return whether the kernel has taken all."""
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self.plain.send(self._unsent) :]
        return not self._unsent


_HANDSHAKE_BYTES: Final = 16_384
_THREADS: Final = trio.CapacityLimiter(2)


class TlsHandshakeError(OSError):
    """A failed handshake; the message has the reason, without the peer's name."""


async def accept_handshake(tls: ProcessTls, connected: socket.socket, *, received: bytes = b"") -> TlsSocket:
    """Shake hands with a client; on failure, or without a required certificate, close the socket.

    Raises TlsHandshakeError.
    """
    context = tls.accepting
    assert context is not None, "TLS is never turned off"
    shaken = await _shake_hands(connected, context, is_server=True, received=received)
    is_asked = context.verify_mode != ssl.CERT_NONE
    if is_asked and not tls.settings.allows_connections_without_certificates and shaken.peer_subject is None:
        shaken.close()
        raise TlsHandshakeError("no SSL certificate provided by peer; connection rejected")
    return shaken


async def dial_handshake(connected: socket.socket, context: ssl.SSLContext, host: str | None) -> TlsSocket:
    """Shake hands with a server; on failure, close the socket and raise TlsHandshakeError.

    The server's certificate must match ``host``, a name or address; None on a UNIX socket.
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
                data = connected.recv(_HANDSHAKE_BYTES)
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
    """Process received bytes, and answer them; return whether the handshake is complete.

    Raises ssl.SSLError for wrong bytes; the peer receives an alert if it can take one now.
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


class ReactorSocket:
    """A connected socket, plain or with TLS.

    Attributes:
        has_news: whether there may be unread data; stays true once the peer has closed. A reader that stops before the
            socket is empty sets it.
        unsent: the posted bytes that are not sent yet; they are sent before the next wait for a reply ends.
        when_sent: called whenever everything has been sent.
    """

    __slots__ = (
        "_is_hung_up",
        "_is_watched",
        "_resume",
        "_secured",
        "connected",
        "has_news",
        "plain",
        "unsent",
        "when_sent",
    )

    def __init__(self, connected: socket.socket | TlsSocket) -> None:
        self.connected = connected
        self._secured = connected if isinstance(connected, TlsSocket) else None
        self.plain = connected.plain if isinstance(connected, TlsSocket) else connected
        self._is_watched = False
        self._is_hung_up = False
        self._resume: Callable[[], None] | None = None
        self.has_news = self._secured is not None and self._secured.may_have_unread
        self.unsent = b""
        self.when_sent: Callable[[], object] | None = None

    # Reading

    def take_news(self) -> bool:
        """Whether there may be something to read; resets `has_news`, so the caller must read."""
        if not self.has_news:
            return False
        self.has_news = self._is_hung_up
        return True

    def resume_on_news(self, resume: Callable[[], None]) -> None:
        """Call back when there is something to read; the caller is about to yield to the reactor."""
        if not self._is_watched:
            REACTOR.watch(self.plain, self._on_readable)
            self._is_watched = True
        self._resume = resume

    def forget_waiting(self) -> None:
        """Cancel the callback, because its owner has stopped waiting or waits by itself."""
        self._resume = None

    async def wait_in_task(self) -> None:
        """Wait until there may be something to read, or the peer has closed; for code that runs in a trio task."""
        if self._secured is not None and self._secured.may_have_unread:
            await trio.lowlevel.checkpoint()
        else:
            await wait_readable(self.plain)
        self.has_news = self._is_hung_up

    @may_run_in_reactor
    async def wait_readable(self) -> None:
        """Wait until the socket may be readable or the peer has closed, and everything posted has been sent.

        Raises OSError if the connection broke.
        """
        loop = REACTOR.loop
        if loop is None:
            if self.unsent:
                await self._write_all()
            await self.wait_in_task()
        elif not self.take_news():
            self.resume_on_news(loop.resume)
            await until_resumed()
            if self.unsent:
                self.forget_waiting()
                await self._write_all()
            if REACTOR.loop is None:  # its task has taken over
                self.forget_waiting()
                await self.wait_in_task()
        elif self.unsent:  # posted before another wait, and the peer has hung up or did not take all of it
            await self._write_all()

    def close(self) -> None:
        """Stop watching; must be called before the socket is closed."""
        if self._is_watched:
            REACTOR.unwatch(self.plain)

    def _on_readable(self, events: int) -> None:
        resume, self._resume = self._resume, None
        if events & HANG_UP:
            self._is_hung_up = self.has_news = True
        if resume is None:
            self.has_news = True
        else:
            resume()

    # Writing

    def can_post(self, frame: bytes) -> bool:
        """Whether a frame may wait for the end of the reactor's round."""
        return REACTOR.loop is not None and not self.unsent and not self.has_news and len(frame) <= _POSTED_BYTES_MAX

    def post(self, frame: bytes, resume: Callable[[], None] | None = None) -> None:
        """Post a frame to be written at the end of the reactor's round; nothing may be unsent.

        A ``resume`` is called as by `resume_on_news`.
        """
        self.unsent = frame
        REACTOR.afterwards.append(self._write)
        if resume is not None:
            if self._is_watched:
                self._resume = resume
            else:
                self.resume_on_news(resume)

    def give_up_to(self, frame: bytes | memoryview) -> bytes:
        """Return the posted bytes followed by a frame, for the caller to write now; nothing remains posted."""
        both, self.unsent = b"".join((self.unsent, frame)), b""
        return both

    def _write(self) -> None:
        frame = self.unsent
        if not frame:
            return
        try:
            sent = self.connected.send(frame)
        except OSError:
            sent = 0  # the buffer is full, or an error that the next call will raise again where it is handled
        if sent == len(frame):
            self.unsent = b""
            if self.when_sent is not None:
                self.when_sent()
            return
        self.unsent = frame[sent:]
        # The code that waits for the reply writes the rest; or the next wait does, if there is none yet.
        resume, self._resume = self._resume, None
        if resume is None:
            self.has_news = True
        else:
            resume()

    @may_run_in_reactor
    async def _write_all(self) -> None:
        await in_own_task()
        while self.unsent:
            await wait_writable(self.plain)
            with suppress(BlockingIOError):
                self.unsent = self.unsent[self.connected.send(self.unsent) :]
        if self.when_sent is not None:
            self.when_sent()
