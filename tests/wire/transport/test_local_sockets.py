"""Daemons on one machine reach each other through UNIX sockets, or through TCP if there is none."""

import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import socket_path
from tests.transports import new_transport
from tests.wire.transport.serving import RecordingHandler, answer_ok, listen, serving


def hello() -> dict[str, Any]:
    return {"hello": 1, "$db": "admin"}


async def test_a_daemon_with_a_socket_is_reached_through_it(tmp_path: Path) -> None:
    handler = RecordingHandler(answer_ok)
    tcp_listener = listen()
    address = f"127.0.0.1:{tcp_listener.getsockname()[1]}"
    unix_listener = socket.socket(socket.AF_UNIX)
    unix_listener.bind(str(socket_path(tmp_path, address)))
    unix_listener.listen()
    async with trio.open_nursery() as nursery:
        await nursery.start(Server(new_transport(), handler).serve, [tcp_listener, unix_listener])
        connection = await Connection.open(new_transport(socket_directory=tmp_path), address, handshake=hello())
        assert connection.socket.family == socket.AF_UNIX
        assert connection.address == address
        assert handler.opened[0].peer == "anonymous unix socket"
        connection.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_left_behind", [True, False])
async def test_a_daemon_without_one_is_reached_over_tcp(tmp_path: Path, is_left_behind: bool) -> None:
    async with serving(answer_ok) as served:
        if is_left_behind:
            dead = socket.socket(socket.AF_UNIX)
            dead.bind(str(socket_path(tmp_path, served.address)))
            dead.close()
        connection = await Connection.open(new_transport(socket_directory=tmp_path), served.address, handshake=hello())
        assert connection.socket.family == socket.AF_INET
        connection.close()
