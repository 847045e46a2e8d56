"""A client that waits for news of a member, as a driver's monitor does."""

import socket

import bson

from shardwright.wire.frames import FrameReader
from shardwright.wire.message import EXHAUST_ALLOWED, OpMsg, op_msg


class HelloStream:
    """A connection with an awaitable hello."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._reader = FrameReader()
        self._ask({"hello": 1})
        self._version: object = None
        self.receive()

    def wait_for_news(self) -> None:
        """Request the next reply that differs from the last one."""
        self._ask({"hello": 1, "topologyVersion": self._version, "maxAwaitTimeMS": 30_000})

    def stream_news(self) -> None:
        """Request all further replies that differ from the one before, as drivers do."""
        self._ask({"hello": 1, "topologyVersion": self._version, "maxAwaitTimeMS": 30_000}, flags=EXHAUST_ALLOWED)

    def receive(self) -> dict[str, object]:
        """The next reply."""
        while (frame := self._reader.next_frame()) is None:
            self._reader.feed(self.socket.recv(65536))
        hello: dict[str, object] = bson.decode(OpMsg(frame).body)
        self._version = hello["topologyVersion"]
        return hello

    def _ask(self, command: dict[str, object], *, flags: int = 0) -> None:
        self.socket.sendall(op_msg(bson.encode({**command, "$db": "admin"}), request_id=1, flags=flags))
