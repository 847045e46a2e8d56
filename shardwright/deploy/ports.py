"""Choosing free TCP ports, and reserving them while a cluster starts.

A chosen port stays bound (but not listening) in this process until the process that will use it is about to start, so
that two clusters that start at the same time never choose the same port.
"""

import random
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import LOOPBACK

# Below the range that Linux uses for outgoing connections (32768-60999), so that a stopped cluster finds its ports free
# when it is restarted.
FREE_PORTS = range(20_000, 32_000)


class PortReservation:
    """A set of ports held by this process; a context manager that releases every port at the end."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for port in list(self._held):
            self.release(port)

    def hold(self, port: int) -> None:
        """Reserve exactly ``port``.

        Raises:
            DeployError: another process uses it.
        """
        # A port with connections in TIME_WAIT is free for a server, since all our servers set this option too.
        held = _bind(port, reuse=True)
        if held is None:
            raise DeployError(f"port {port} on {LOOPBACK} is in use")
        self._held[port] = held

    def ensure_held(self, port: int) -> None:
        """Reserve exactly ``port`` unless it is reserved already; errors as `hold`."""
        if port not in self._held:
            self.hold(port)

    def hold_free(self, preferred: Iterable[int] = ()) -> int:
        """Reserve and return the first free port of ``preferred``, otherwise a random one of `FREE_PORTS`.

        Raises:
            DeployError: every port is in use.
        """
        for port in [*preferred, *random.sample(FREE_PORTS, len(FREE_PORTS))]:
            held = _bind(port, reuse=False)
            if held is not None:
                self._held[port] = held
                return port
        raise DeployError(f"every port from {FREE_PORTS.start} to {FREE_PORTS.stop - 1} on {LOOPBACK} is in use")

    def hold_free_run(self, count: int) -> int:
        """Reserve ``count`` consecutive free ports of `FREE_PORTS` and return the first.

        Raises:
            DeployError: there are not enough consecutive free ports.
        """
        for first in random.sample(FREE_PORTS, len(FREE_PORTS)):
            run: dict[int, socket.socket] = {}
            for port in range(first, min(first + count, FREE_PORTS.stop)):
                held = _bind(port, reuse=False)
                if held is None:
                    break
                run[port] = held
            if len(run) == count:
                self._held |= run
                return first
            for held in run.values():
                held.close()
        raise DeployError(f"no {count} ports in a row are free from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}")

    def release(self, port: int) -> None:
        """Release ``port`` for the process that is about to listen on it."""
        self._held.pop(port).close()


def _bind(port: int, *, reuse: bool) -> socket.socket | None:
    """A socket bound to ``port``; ``None`` if the port is in use."""
    candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if reuse:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind((LOOPBACK, port))
    except (OSError, OverflowError):  # the latter beyond the last port
        candidate.close()
        return None
    return candidate
