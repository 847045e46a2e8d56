"""A connection to a server over which any bytes can be sent."""

import socket
from struct import pack
from typing import Any

import bson

from shardwright.wire.frames import OP_MSG, OP_QUERY
from shardwright.wire.message import EXHAUST_ALLOWED

RECEIVE_SECONDS_MAX = 30.0


class RawConnection:
    """One UNIX socket connection; every method blocks until the server has answered."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(RECEIVE_SECONDS_MAX)
        self._socket.connect(path)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return the reply; b"" if the server closes the connection instead."""
        self._socket.sendall(frame)
        header = self._receive(16)
        return header + self._receive(int.from_bytes(header[:4], "little") - 16) if header else b""

    def command(self, command: dict[str, Any], *, db: str = "admin", exhaust_allowed: bool = False) -> dict[str, Any]:
        """Run a command through OP_MSG and return the reply."""
        reply = self.exchange(op_msg_frame({**command, "$db": db}, EXHAUST_ALLOWED if exhaust_allowed else 0))
        return dict(bson.decode(reply[21:]))

    def _receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            data = self._socket.recv(count - len(received))
            if not data:
                return b""
            received += data
        return received


def op_msg_frame(body: dict[str, Any], flags: int = 0) -> bytes:
    """An OP_MSG frame, built without the code under test."""
    sections = pack("<I", flags) + b"\0" + bson.encode(body)
    return pack("<iiii", 16 + len(sections), 9, 0, OP_MSG) + sections


def op_query_frame(
    collection: str,
    query: dict[str, Any],
    *,
    flags: int = 0,
    skip: int = 0,
    number_to_return: int = -1,
    tail: bytes = b"",
) -> bytes:
    """An OP_QUERY frame, built without the code under test."""
    body = pack("<I", flags) + collection.encode() + b"\0" + pack("<ii", skip, number_to_return) + bson.encode(query)
    return pack("<iiii", 16 + len(body) + len(tail), 9, 0, OP_QUERY) + body + tail
