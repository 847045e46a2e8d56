"""The cost of TLS compared with a plain connection, in CPU time of one end.

Both ends are sockets of this process, so that nothing else is measured. The exchanges are a request of a point find and
its reply, a long reply, and a handshake with certificates on both sides.
"""

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Final

import trio

from shardwright.deploy.certs import TlsFiles
from shardwright.wire.tls import ProcessTls, TlsMode, TlsSettings
from shardwright.wire.transport.sockets import TlsSocket, accept_handshake, dial_handshake

_REPEATS: Final = 20_000
_REPEATS_LONG: Final = 200
_HANDSHAKES: Final = 100
_REQUEST: Final = bytes(160)
_REPLY: Final = bytes(400)
_LONG_REPLY: Final = bytes(1 << 17)
_READ_BYTES: Final = 1 << 17

_End = socket.socket | TlsSocket


def measure_tls() -> dict[str, float]:
    """Measure both kinds of connections and print them; microseconds of CPU time of one end."""
    with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as directory:
        files = TlsFiles(Path(directory) / "tls")
        files.create()
        tls = ProcessTls(TlsSettings(TlsMode.REQUIRE, files.server_file, files.ca_file))
    results = {**_measure("plain", _pair()), **_measure("TLS", trio.run(_secured_pair, tls))}
    results["handshake"] = _handshake_microseconds(tls)
    print("\nTLS beside plain connections, CPU us of one end")
    print("  " + ", ".join(f"{name} {microseconds:.1f}" for name, microseconds in results.items()))
    return results


def _measure(kind: str, ends: tuple[_End, _End]) -> dict[str, float]:
    client, server = ends

    def exchange(reply: bytes) -> Callable[[], None]:
        def run() -> None:
            client.send(_REQUEST)
            server.recv(_READ_BYTES)
            received = 0
            unsent = memoryview(reply)
            while received < len(reply):
                if unsent:
                    unsent = unsent[server.send(unsent) :]
                received += len(client.recv(_READ_BYTES))

        return run

    try:
        return {
            f"{kind} point find": _loop(exchange(_REPLY), _REPEATS) / 2,
            f"{kind} reply of 128 KiB": _loop(exchange(_LONG_REPLY), _REPEATS_LONG) / 2,
        }
    finally:
        client.close()
        server.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    client, server = socket.socketpair()
    for end in (client, server):
        end.setblocking(False)
    return client, server


async def _secured_pair(tls: ProcessTls) -> tuple[TlsSocket, TlsSocket]:
    assert tls.dialing_locally is not None
    client, server = _pair()
    secured: list[TlsSocket] = []

    async def accept() -> None:
        secured.append(await accept_handshake(tls, server))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await dial_handshake(client, tls.dialing_locally, None)
    return dialed, secured[0]


def _handshake_microseconds(tls: ProcessTls) -> float:
    async def shake_hands() -> None:
        for _ in range(_HANDSHAKES):
            for end in await _secured_pair(tls):
                end.close()

    began = process_time()
    trio.run(shake_hands)
    return (process_time() - began) / _HANDSHAKES / 2 * 1e6


def _loop(step: Callable[[], object], repeats: int) -> float:
    began = process_time()
    for _ in range(repeats):
        step()
    return (process_time() - began) / repeats * 1e6
