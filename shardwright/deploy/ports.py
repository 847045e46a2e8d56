"""Choosing free TCP ports, and reserving them while a cluster starts.

A chosen port stays bound (but not listening) in this process until the process that will use it is about to start. So
two clusters that start at the same time never choose the same port.

Between the release of a port and the start of its listener, this process does not choose the port again, because it
prefers the ports that it has not chosen for longest. Another process could take it, unless each has ports of its own
(`ENVIRONMENT_VARIABLE`).
"""

import itertools
import os
import random
import re
import socket
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import LOOPBACK

# Below the range that Linux uses for outgoing connections (32768-60999), so that a stopped cluster finds its ports free
# when it is restarted.
FREE_PORTS: Final = range(20_000, 32_000)

ENVIRONMENT_VARIABLE: Final = "SHARDWRIGHT_PORTS"
"""``FIRST-LAST``: the ports to choose from instead of `FREE_PORTS`."""

_choices = itertools.count(1)
_last_choice: dict[int, int] = {}  # by port, of this process


def ports_to_choose_from() -> range:
    """Return the range from which free ports are chosen."""
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if text is None:
        return FREE_PORTS
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    if found is None or not 0 < int(found[1]) <= int(found[2]) < 65536:
        raise DeployError(f"{ENVIRONMENT_VARIABLE}={text} is not of the form FIRST-LAST")
    return range(int(found[1]), int(found[2]) + 1)


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
        """Reserve exactly ``port``."""
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
        """Reserve and return the first free port of ``preferred``, otherwise one of `ports_to_choose_from`."""
        ports = ports_to_choose_from()
        for port in [*preferred, *_in_order_of_choice(ports)]:
            held = _bind(port, reuse=False)
            if held is not None:
                self._hold_chosen({port: held})
                return port
        raise DeployError(f"every port from {ports.start} to {ports.stop - 1} on {LOOPBACK} is in use")

    def hold_free_run(self, count: int) -> int:
        """Reserve ``count`` consecutive free ports of `ports_to_choose_from` and return the first."""
        ports = ports_to_choose_from()
        for first in _in_order_of_choice(ports, count):
            run: dict[int, socket.socket] = {}
            for port in range(first, min(first + count, ports.stop)):
                held = _bind(port, reuse=False)
                if held is None:
                    break
                run[port] = held
            if len(run) == count:
                self._hold_chosen(run)
                return first
            for held in run.values():
                held.close()
        raise DeployError(f"no {count} ports in a row are free from {ports.start} to {ports.stop - 1}")

    def release(self, *ports: int) -> None:
        """Release these ports for the process that is about to listen on them."""
        for port in ports:
            self._held.pop(port).close()

    def _hold_chosen(self, ports: Mapping[int, socket.socket]) -> None:
        self._held |= ports
        _last_choice.update(dict.fromkeys(ports, next(_choices)))


def _in_order_of_choice(ports: range, count: int = 1) -> list[int]:
    """Return the ports in the order of the attempts, or the first ports of ``count`` in a row.

    Ports that this process has not chosen for longest come first; ports that it never chose are in random order.
    """

    def last_choice(first: int) -> int:
        return max(_last_choice.get(port, 0) for port in range(first, first + count))

    return sorted(random.sample(ports, len(ports)), key=last_choice)


def _bind(port: int, *, reuse: bool) -> socket.socket | None:
    """Return a socket bound to ``port``; ``None`` if the port is in use."""
    candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if reuse:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind((LOOPBACK, port))
    except (OSError, OverflowError):  # the latter beyond the last port
        candidate.close()
        return None
    return candidate
