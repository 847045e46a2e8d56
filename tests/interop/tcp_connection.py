"""A TCP connection for sending commands and reading replies without a driver."""

import socket
from struct import Struct
from typing import Any, Self

import bson

from tests.wire.raw_connection import RECEIVE_SECONDS_MAX, op_msg_frame

_LENGTH = Struct("<i")


class TcpConnection:
    """A connection to ``host:port``; use it as a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=RECEIVE_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def command(self, command: dict[str, Any], *, db: str) -> dict[str, Any]:
        """Send a command and return the whole reply, even if it is an error."""
        self._socket.sendall(op_msg_frame({**command, "$db": db}))
        (length,) = _LENGTH.unpack(self._receive(4))
        return dict(bson.decode(self._receive(length - 4)[17:]))

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            data = self._socket.recv(count - len(received))
            assert data, "the server closed the connection"
            received += data
        return bytes(received)
