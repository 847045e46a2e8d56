"""How many bytes clients and a server have sent each other, as the kernel has counted them.

Nothing is counted here while messages are served: each socket is asked when the numbers are wanted, and once more
before it is closed (tcp(7), ``TCP_INFO``). What a handler writes by itself, and TLS, are part of it.
"""

import socket
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

_COUNTERS: Final = Struct("=128xQ64xQ")
"""``tcpi_bytes_received`` and ``tcpi_bytes_sent`` of ``struct tcp_info`` (linux/tcp.h), the second since Linux 4.19."""


class Traffic(NamedTuple):
    """Bytes received from clients, and sent to them."""

    received: int = 0
    sent: int = 0


def traffic_of(connected: socket.socket) -> Traffic:
    """The bytes of one connection; none on a UNIX socket, whose kernel side does not count."""
    if connected.family == socket.AF_UNIX:
        return Traffic()
    counters = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
    return Traffic(*_COUNTERS.unpack(counters.ljust(_COUNTERS.size, b"\0")))


def sum_of(parts: Iterable[Traffic]) -> Traffic:
    """The bytes of several connections."""
    received, sent = map(sum, zip(Traffic(), *parts, strict=True))
    return Traffic(received, sent)
