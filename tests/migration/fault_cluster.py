"""A cluster whose processes are killed, paused and restarted by name, within milliseconds."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pymongo.errors import PyMongoError

from tests.integration.waiting import eventually
from tests.local_cluster import RESTART_SECONDS_MAX, Client, RunningCluster, running_cluster

CONFIG: Final = "config"
"""The config servers, which have primaries as shards have."""

NO_DELAY: Final = ("--orphan-cleanup-delay", "0")
"""Orphans are deleted as soon as no older operation can read them."""


class FaultCluster:
    """A running cluster, its processes and its clients.

    Attributes:
        running: the cluster as other tests know it.
    """

    def __init__(self, running: RunningCluster, clients: ExitStack) -> None:
        self.running = running
        self._clients = clients
        self._cached: dict[str, Client] = {}
        self._impatient: dict[str, Client] = {}
        self._local = running.local

    # Processes

    @property
    def names(self) -> list[str]:
        """The names of all processes."""
        return [process["name"] for process in self.running.document["processes"]]

    @property
    def router_addresses(self) -> list[str]:
        """``host:port`` of each router."""
        return [self.running.address(name) for name in self.names if name.startswith("router.")]

    def kill(self, name: str) -> None:
        """End a process by SIGKILL; returns when it is gone."""
        self._local.kill(name, signal.SIGKILL)
        # Processes that were started here are children of this one, and remain zombies until they are waited for.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def restart(self, name: str) -> None:
        """Start a process that was killed; returns when it serves."""
        self._local.restart(name, RESTART_SECONDS_MAX)

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Suspend a process until the block ends."""
        self._local.kill(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self._local.kill(name, signal.SIGCONT)

    # Clients

    def client(self, name: str) -> Client:
        """A client of exactly one process, the same one each time."""
        if name not in self._cached:
            connected = self.running.direct(name, serverSelectionTimeoutMS=30_000)
            self._cached[name] = self._clients.enter_context(connected)
        return self._cached[name]

    def _impatient_client(self, name: str) -> Client:
        """A client of exactly one process that does not wait for it long, the same one each time."""
        if name not in self._impatient:
            connected = self.running.direct(name, serverSelectionTimeoutMS=500, socketTimeoutMS=5000)
            self._impatient[name] = self._clients.enter_context(connected)
        return self._impatient[name]

    def router(self, index: int = 0) -> Client:
        """A client of one router."""
        return self.client(f"router.{index}")

    def mongods_of(self, shard: str) -> list[str]:
        """The names of a shard's mongods."""
        return [name for name in self.names if name.startswith(f"{shard}.") and name.endswith(".mongod")]

    def primary_index(self, shard: str, *, other_than: int | None = None) -> int:
        """The primary member of a shard, once there is one, or once it is another one than before."""

        def find() -> tuple[int] | None:
            for index in range(len(self.mongods_of(shard))):
                with suppress(PyMongoError):
                    daemon = self._impatient_client(daemon_of(shard, index))
                    if index != other_than and daemon.admin.command("hello")["isWritablePrimary"]:
                        return (index,)
            return None

        return eventually(find, what=f"{shard} has a primary")[0]

    def primary_daemon(self, shard: str) -> str:
        """The name of the daemon of a shard's primary."""
        return daemon_of(shard, self.primary_index(shard))


def daemon_of(shard: str, index: int) -> str:
    """The name of the daemon of a member of a shard, or of the config servers."""
    return f"{shard}.{index}.{'configd' if shard == CONFIG else 'shardd'}"


@contextmanager
def fault_cluster(directory: Path, *options: str) -> Iterator[FaultCluster]:
    """Start a cluster of two routers with these options of ``up``, and stop it after the block, whatever its state.

    Every commit of a migration is verified.
    """
    arguments = ("--routers", "2", "--verify-migrations", *options)
    with running_cluster(directory, *arguments) as running, ExitStack() as clients:
        yield FaultCluster(running, clients)


def catalog_documents(client: Client, collection: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    """Documents of a collection of ``config``."""
    return list(client.config[collection].find(query))
