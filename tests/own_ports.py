"""Ports for each of the processes that run tests side by side.

Between the choice of a free port and the moment in which a server listens on it, no other process must choose it.
"""

import os
from typing import Final

from shardwright.deploy.ports import ENVIRONMENT_VARIABLE, FREE_PORTS

_WORKER: Final = "PYTEST_XDIST_WORKER"
_COUNT: Final = "PYTEST_XDIST_WORKER_COUNT"


def use_own_ports() -> None:
    """Restrict this process, and its children, to its share of the ports, if others run at the same time."""
    worker = os.environ.get(_WORKER)
    if worker is None:
        return
    ports = ports_of(int(worker.removeprefix("gw")), int(os.environ[_COUNT]))
    os.environ[ENVIRONMENT_VARIABLE] = f"{ports.start}-{ports.stop - 1}"


def ports_of(number: int, count: int) -> range:
    """The share of one of ``count`` processes; one that takes the place of a dead one has a higher number."""
    share, place = len(FREE_PORTS) // count, number % count
    return FREE_PORTS[place * share : (place + 1) * share]
