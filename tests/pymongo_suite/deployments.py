"""The two deployments that the suite runs on."""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.mongods import primary_mongod
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.local_cluster import Client, RunningCluster, running_cluster

_CACHE_GB: Final = 0.5
"""Of each mongod: with less, it may refuse the 48 MB that one of the tests inserts in a transaction."""

_SET: Final = "rs0"


SUITE_USER: Final = "user"
SUITE_PASSWORD: Final = "password"
"""The password of the suite's user, unless its environment sets another."""


def create_suite_user(root: Client) -> None:
    """Create the user of the suite."""
    root.admin.command("createUser", SUITE_USER, pwd=SUITE_PASSWORD, roles=["root"])


@contextmanager
def closed_replica_set(directory: Path) -> Iterator[str]:
    """As `replica_set`, with access control."""
    directory.mkdir(parents=True)
    key = directory / "key"
    key.write_text(base64.b64encode(os.urandom(60)).decode())
    key.chmod(0o600)
    with replica_set(directory / "data", "--keyFile", str(key)) as address:
        with Client(address, directConnection=True) as first:  # the localhost exception
            create_suite_user(first)
        yield address


@contextmanager
def closed_cluster(directory: Path) -> Iterator[str]:
    """As `cluster`, with access control."""
    with _running(directory, "--auth") as running:
        with running.direct("router.0") as root:
            create_suite_user(root)
        yield running.address("router.0")


@contextmanager
def replica_set(directory: Path, *options: str) -> Iterator[str]:
    """A plain replica set of one member, with further options of mongod; yields its address."""
    with PortReservation() as ports:
        plan = ProcessPlan(_SET, Role.MONGOD, ports.hold_free(), _SET)
        ports.release(*plan.ports())
        with primary_mongod(find_mongod(), plan, directory, _CACHE_GB, *options):
            yield plan.address


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A cluster of two shards and two routers; yields the address of the first.

    The suite finds the second by its port, the next one, and runs tests on both where it can.
    """
    with _running(directory) as running:
        yield running.address("router.0")


@contextmanager
def _running(directory: Path, *options: str) -> Iterator[RunningCluster]:
    with PortReservation() as ports:
        port = ports.hold_free_run(2)
    usual = ("--routers", "2", "--port", str(port), "--orphan-cleanup-delay", "0", "--cache-gb", str(_CACHE_GB))
    with running_cluster(directory, *usual, *options) as running:
        yield running
