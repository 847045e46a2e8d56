"""The two deployments that the suite runs on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.mongods import primary_mongod
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.local_cluster import running_cluster

_CACHE_GB: Final = 0.5
"""Of each mongod: with less, it may refuse the 48 MB that one of the tests inserts in a transaction."""

_SET: Final = "rs0"


@contextmanager
def replica_set(directory: Path) -> Iterator[str]:
    """A plain replica set of one member; yields its address."""
    with PortReservation() as ports:
        plan = ProcessPlan(_SET, Role.MONGOD, ports.hold_free(), _SET)
        ports.release(plan.port)
        with primary_mongod(find_mongod(), plan, directory, _CACHE_GB):
            yield plan.address


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A cluster of two shards and two routers; yields the address of the first.

    The suite finds the second by its port, the next one, and runs tests on both where it can.
    """
    with PortReservation() as ports:
        port = ports.hold_free_run(2)
    options = ("--routers", "2", "--port", str(port), "--orphan-cleanup-delay", "0", "--cache-gb", str(_CACHE_GB))
    with running_cluster(directory, *options) as running:
        yield running.address("router.0")
