"""A connection over which any bytes can be sent, and which can be closed at any moment.

On the clusters of `tests.second_run` it is secured and logs in.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import bson

from tests.credentials import Credentials, LogInMessages
from tests.local_cluster import credentials_for
from tests.wire.raw_connection import op_msg_frame

SECONDS_MAX = 60.0


class RawClient:
    """One connection; every method blocks until the server has answered.

    Attributes:
        socket: the connection.
        opened: when it was opened. A former connection may have had the same port.
    """

    def __init__(self, address: str) -> None:
        host = address.rpartition(":")[0]
        credentials = credentials_for(address)
        self.opened = datetime.now(UTC)
        self.socket = credentials.secured(_connected(address), host)
        if credentials.user:
            self._log_in(credentials)

    def send(self, frame: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(frame)

    def send_command(self, command: dict[str, Any], *, db: str = "admin", flags: int = 0) -> None:
        """Send a command without waiting for the reply."""
        self.send(op_msg_frame({**command, "$db": db}, flags))

    def receive(self) -> bytes:
        """The next frame; b"" if the server has closed the connection."""
        header = self._receive(16)
        return header + self._receive(int.from_bytes(header[:4], "little") - 16) if header else b""

    def command(self, command: dict[str, Any], *, db: str = "admin", flags: int = 0) -> dict[str, Any]:
        """Run a command and return the reply, whatever it says."""
        self.send_command(command, db=db, flags=flags)
        return self.receive_reply()

    def receive_reply(self) -> dict[str, Any]:
        """The body of the next OP_MSG."""
        return dict(bson.decode(self.receive()[21:]))

    def is_closed_by_server(self) -> bool:
        """Wait until the server closes the connection; returns whether it has sent nothing more before."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _log_in(self, credentials: Credentials) -> None:
        messages = LogInMessages(credentials)
        first = self._exchange(messages.start(), credentials.database)
        assert self._exchange(messages.go_on(first["payload"]), credentials.database)["done"]

    def _exchange(self, step: dict[str, Any], db: str) -> dict[str, Any]:
        """The reply to a step of the log-in; a server that is ending counts as one that is not there."""
        self.send_command(step, db=db)
        frame = self.receive()
        reply: dict[str, Any] = bson.decode(frame[21:]) if frame else {}
        if not reply.get("ok"):
            raise ConnectionResetError(f"the log-in ended: {reply}")
        return reply

    def _receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                data = self.socket.recv(count - len(received))
            except ConnectionResetError:
                return b""
            if not data:
                return b""
            received += data
        return received


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        return socket.create_connection((host, int(port)), SECONDS_MAX)
    local = socket.socket(socket.AF_UNIX)
    local.settimeout(SECONDS_MAX)
    local.connect(address)
    return local


@contextmanager
def raw_client(address: str) -> Iterator[RawClient]:
    """A connection to ``host:port`` or to the path of a UNIX socket, closed after the block."""
    client = RawClient(address)
    try:
        yield client
    finally:
        client.socket.close()
