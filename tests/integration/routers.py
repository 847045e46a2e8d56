"""Additional routers for single tests."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import bson

from shardwright.deploy.ports import PortReservation
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, forget_credentials

START_SECONDS_MAX = 120.0
END_SECONDS_MAX = 60.0


@contextmanager
def extra_router(cluster: RunningCluster, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An additional router: its address and its process; stopped after the block."""
    config_servers = f"config/{cluster.address('config.0.configd')}"
    with router_of(config_servers, *options, *cluster.daemon_options, register=cluster.register) as started:
        yield started


@contextmanager
def router_of(
    config_servers: str, *options: str, register: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A router of a cluster that need not have been started by the launcher; as `extra_router`.

    Args:
        config_servers: ``set/host:port,…``.
        options: of the router.
        register: is given its address.
    """
    with PortReservation() as ports:
        port = ports.hold_free()
    command = [sys.executable, "-m", "shardwright.router.main", "--configdb", config_servers]
    process = subprocess.Popen([*command, "--port", str(port), *options], stderr=subprocess.DEVNULL)
    address = f"127.0.0.1:{port}"
    register(address)
    try:
        eventually(lambda: worker_of(address), within=START_SECONDS_MAX, what="the router answers")
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
            forget_credentials([address])


def worker_of(address: str) -> int | None:
    """The pid of the worker that accepts a new connection to a router; None if there is no router yet."""
    try:
        with raw_client(address) as client:
            client.send_command({"serverStatus": 1})
            reply = client.receive()
    except (ConnectionRefusedError, ConnectionResetError):
        return None  # the latter while a router of several processes tries out its port
    return int(bson.decode(reply[21:])["pid"]) if reply else None


def connect_to_all(address: str, workers: int, connections: int) -> list[RawClient]:
    """Connections to a router, at least one of them to each of its workers."""

    def connect() -> list[RawClient] | None:
        clients = [RawClient(address) for _ in range(connections)]
        if len({client.command({"serverStatus": 1})["pid"] for client in clients}) == workers:
            return clients
        for client in clients:
            client.socket.close()
        return None

    return eventually(connect, what="all workers serve")
