"""Serving recognised requests straight from the reactor's callbacks, while the connection's request loop sleeps.

Most of the cost of a short operation is the coroutine that receives it, and the ones that it awaits. So while a
connection waits for its next request, its socket wakes the lane rather than the request loop. If the daemon's passages
recognise the frame, the lane posts the request to the next server, waits for its socket, and posts the reply. An
operation may have requests to several servers, whose replies are received one after the other.

Everything else wakes the request loop: an unknown frame, part of a frame, an unusual reply, an error, a deadline, a
disconnect, a shutdown. The loop then continues on the ordinary path, from a frame that was given back to its stream or
from an operation that has begun.

```
            request                                reply
 idle ────────────────▶ passages.begin ─▶ begun ───────────────▶ passages.finish ─▶ idle
   │                        │ None          │                        │ None
   ▼                        ▼               ▼                        ▼
 ordinary ◀── frame ────────┘    ordinary, with `ClientConnection.begun`: its request is not sent again
```
"""

from typing import Protocol

from shardwright.wire.frames import HEADER_BYTES
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import REACTOR, may_run_in_reactor, until_resumed
from shardwright.wire.transport.stream import READ_BYTES, FrameStream


class Passages(Protocol):
    """A daemon's passages for requests that it merely forwards."""

    def begin(self, client: ClientConnection, frame: bytes) -> Begun | None:
        """Begin an operation whose frame is recognised.

        Returns:
            The operation, with connections that are all quiet, on which the caller sends its requests; None if the
            ordinary path has to serve it, in which case nothing was changed.
        """

    def finish(self, client: ClientConnection, begun: Begun, reply: bytes) -> bytes | None:
        """End an operation with its last reply; the earlier ones are in `Begun.answered`.

        Returns:
            The reply to the client; None if the ordinary path has to handle it, in which case nothing was changed.
        """

    def leave(self) -> None:
        """Record that the ordinary path takes over an operation, for any reason."""


class ExpressLane:
    """The lane of one client."""

    __slots__ = ("_begun", "_client", "_failure", "_frame", "_passages", "_stream")

    def __init__(self, client: ClientConnection, passages: Passages) -> None:
        self._client = client
        self._stream: FrameStream = client.stream
        self._passages = passages
        self._begun: Begun | None = None
        self._frame = b""
        self._failure: Exception | None = None

    @may_run_in_reactor
    async def receive(self) -> bytes | None:
        """Return the next frame for the ordinary path; None if the client has closed the connection.

        If its operation has begun, `ClientConnection.begun` is set. Raises as `FrameStream.receive`.
        """
        stream = self._stream
        if REACTOR.loop is None or stream.io.has_news or not stream.is_between_frames:
            return await stream.receive()
        stream.io.resume_on_news(self.resume)
        await until_resumed()
        stream.io.forget_waiting()
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.connection.stream.io.forget_waiting()
        failure, self._failure = self._failure, None
        if failure is not None:
            if begun is not None:
                begun.give_up()
            raise failure
        if begun is None:
            return await stream.receive()
        self._client.begun = begun
        self._passages.leave()
        return self._frame

    def resume(self) -> None:
        """Handle news on the socket that the lane waits for: the client's, or the next server's."""
        begun, loop = self._begun, self._client.loop
        stream = self._stream if begun is None else begun.connection.stream
        io = stream.io
        if loop is None or loop.task is None:  # the loop is about to take over
            io.has_news = True
            return
        is_served = False
        if io.unsent:  # the peer has not taken all posted bytes
            io.has_news = True
        else:
            try:
                received = io.connected.recv(READ_BYTES)
            except BlockingIOError:
                io.resume_on_news(self.resume)
                return
            except OSError as error:
                stream.give_back(error)
            else:
                try:
                    is_served = self._serve_request(received) if begun is None else self._serve_reply(begun, received)
                except Exception as error:
                    self._failure = error
        if not is_served:
            loop.resume()

    def _serve_request(self, frame: bytes) -> bool:
        """Begin the operation of the client's next frame; return whether the request loop can stay asleep."""
        client, stream = self._client, self._stream
        length = len(frame)
        if (
            HEADER_BYTES < length < READ_BYTES
            and int.from_bytes(frame[:4], "little") == length
            and not (stream.io.has_news or client.is_newcomer)  # its limit on messages is lower
        ):
            begun = self._passages.begin(client, frame)
            if begun is not None:
                client.is_busy = True
                self._frame, self._begun = frame, begun
                begun.connection.stream.io.post(begun.frame, self.resume)
                for connection, request in begun.following:
                    connection.stream.io.post(request)
                return True
        _give_back(stream, frame)
        return False

    def _serve_reply(self, begun: Begun, reply: bytes) -> bool:
        """End the operation with its reply; return whether the request loop can stay asleep."""
        client, stream, length = self._client, begun.connection.stream, len(reply)
        client_io = self._stream.io
        if (
            HEADER_BYTES < length < READ_BYTES
            and int.from_bytes(reply[:4], "little") == length
            and reply[8:12] == begun.frame[4:8]
            and not (stream.io.has_news or client_io.has_news or client.is_finished)
        ):
            if begun.following:
                begun.advance(reply)
                self._await_reply(begun.connection.stream)
                return True
            answer = self._passages.finish(client, begun, reply)
            if answer is not None:
                self._begun = None
                client.is_busy = client.is_interruptible = False
                client_io.post(answer, self.resume)
                return True
        _give_back(stream, reply)
        return False

    def _await_reply(self, stream: FrameStream) -> None:
        """Receive the next of several replies, at once if it may have arrived."""
        if stream.io.take_news():
            self.resume()
        else:
            stream.io.resume_on_news(self.resume)

    def close(self) -> None:
        """Abandon an operation that has begun, because the connection is closed."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.connection.stream.io.forget_waiting()
            begun.give_up()


def _give_back(stream: FrameStream, received: bytes) -> None:
    """Hand received bytes, empty at the end of the connection, to the request loop."""
    if received:
        stream.io.has_news |= len(received) == READ_BYTES
        stream.give_back(received)
    else:
        stream.io.has_news = True
