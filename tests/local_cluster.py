"""A real cluster for tests, started through the ``shardwright`` command as a user would.

Its processes are killed and started again by the launcher's own functions, which is what the command calls once Python
has started; ``tests/deploy`` has the commands themselves.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from signal import Signals
from typing import Any, Final

from pymongo import MongoClient

from shardwright.deploy.access import FIRST_USER, Access
from shardwright.deploy.certs import TlsFiles
from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.cluster_state import DIAGNOSTIC_DATA
from shardwright.deploy.mongod import uri_of
from shardwright.deploy.steps import Steps
from tests.credentials import EXTERNAL, NO_TLS, NOBODY, Credentials
from tests.sampling import is_drawn

# Seconds for any launcher command; a start on a busy two-core machine takes about ten.
COMMAND_TIMEOUT = 180.0

RESTART_SECONDS_MAX: Final = 60.0

Client = MongoClient[dict[str, Any]]

_SHARE_WITHOUT_PASSAGES: Final = 0.1
"""Share of the files of tests whose clusters have no passages; others each day."""

_TESTER: Final = "tester"
_PRIVILEGES: Final[list[dict[str, Any]]] = [
    {"resource": {"db": "config", "collection": "system.sessions"}, "actions": ["find", "moveChunk", "splitChunk"]},
    {
        "resource": {"db": "", "collection": "system.views"},
        "actions": ["find", "insert", "update", "remove", "changeStream"],
    },
]
"""Additional privileges of the first user in a run with closed clusters, beyond root's."""

_of_all_clusters: list[str] = []
_credentials: dict[str, Credentials] = {}


def close_all_clusters() -> None:
    """Start every cluster with access control and TLS from now on; its clients log in."""
    _of_all_clusters.extend(("--auth", "--tls"))


def credentials_for(address: str) -> Credentials:
    """Return the credentials for a process; none unless all clusters are closed, or some were set."""
    return _credentials.get(address, NOBODY)


def set_credentials(address: str, credentials: Credentials) -> None:
    """Have connections to a process get in with these, also if other clusters are open."""
    _credentials[address] = credentials


def forget_credentials(addresses: Iterable[str]) -> None:
    """Have connections get in as anywhere else: the processes are gone, and others may get their ports."""
    for address in addresses:
        _credentials.pop(address, None)


def client_of(address: str, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
    """A new client of exactly one process of a cluster, at ``host:port``; close it."""
    given = {"directConnection": True, **credentials_for(address).options, **options}
    return MongoClient(f"mongodb://{address}/", **given)


def shardwright(*arguments: str, timeout: float = COMMAND_TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run the command and return its output and exit status."""
    return subprocess.run(
        [sys.executable, "-m", "shardwright.deploy.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass(frozen=True)
class RunningCluster:
    """A running cluster.

    Attributes:
        directory: its ``--dir``.
        document: the output of ``up --json``.
    """

    directory: Path
    document: dict[str, Any]

    @property
    def uri(self) -> str:
        """Connection string with all routers."""
        return str(self.document["uri"])

    @property
    def shards(self) -> dict[str, str]:
        """Connection string of each shard, by shard id."""
        return {shard["_id"]: shard["host"] for shard in self.document["shards"]}

    @property
    def metrics(self) -> dict[str, str]:
        """``host:port`` of each daemon's metrics endpoint, by process name."""
        return dict(self.document["metrics"])

    def client(self, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
        """A new client of the routers, with access control as the first user; close it."""
        return MongoClient(self.uri, **{**self.credentials(is_router=True).options, **options})

    def client_uri(self, name: str | None = None, **options: str) -> str:
        """A connection string with all that a client needs.

        Args:
            name: of a process; otherwise it is for all routers.
            options: further ones of the connection string.
        """
        hosts = self.uri.removeprefix("mongodb://").partition("/")[0] if name is None else self.address(name)
        return self.credentials(is_router=name is None or name.startswith("router")).uri(hosts, **options)

    def address(self, name: str) -> str:
        """Return the address of a process, ``host:port`` or a UNIX socket, for example of ``router.0``."""
        return str(self._process(name)["address"])

    def direct(self, name: str, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
        """A new client of exactly one process; close it.

        With access control it logs in at a router as the first user, elsewhere as a part of the cluster, unless the
        options name another user, or None.
        """
        credentials = self.credentials(is_router=name.startswith("router"))
        given = credentials.tls_options if "username" in options else credentials.options
        return MongoClient(uri_of(self.address(name)), **{"directConnection": True, **given, **options})

    def pid(self, name: str) -> int:
        """The pid of a process now.

        Raises:
            AssertionError: it is not running.
        """
        pid = next(process["pid"] for process in self.local.describe()["processes"] if process["name"] == name)
        assert pid is not None, f"{name} is not running"
        return int(pid)

    def log(self, name: str) -> str:
        """The log of a process so far."""
        return Path(self._process(name)["log"]).read_text()

    def status(self) -> dict[str, Any]:
        """Return the present output of ``status --json``."""
        status: dict[str, Any] = json.loads(shardwright("status", "--json", "--dir", str(self.directory)).stdout)
        return status

    def kill(self, name: str, signal: str = "KILL") -> None:
        """Send a signal to a process; returns when it has ended or is paused, if the signal does that."""
        self.local.kill(name, Signals[f"SIG{signal}"])

    def restart(self, name: str) -> None:
        """End a process if it runs and start it again; returns when it serves."""
        self.local.restart(name, RESTART_SECONDS_MAX)

    def down(self) -> None:
        """End the whole cluster; nothing happens when it is down already."""
        self.run("down")

    def run(self, *arguments: str) -> None:
        """Run a ``shardwright`` command on it, which has to succeed."""
        completed = shardwright(*arguments, "--dir", str(self.directory))
        assert completed.returncode == 0, completed.stderr

    @property
    def key_file(self) -> Path | None:
        """The key of the cluster, if it is closed."""
        access = self.document.get("auth")
        return None if access is None or "keyFile" not in access else Path(access["keyFile"])

    def register(self, address: str, *, is_router: bool = True) -> None:
        """Have connections to a process get in, if all clusters are closed (see `credentials_for`)."""
        if _of_all_clusters:
            set_credentials(address, self.credentials(is_router=is_router))

    def credentials(self, *, is_router: bool) -> Credentials:
        """Return the credentials for a router, or for another process, where only members of the cluster can log in."""
        tls = self._tls_files if is_router else self._tls_files_of_member
        if (access := self.document.get("auth")) is None:
            return Credentials(tls=tls)
        if is_router:
            password = Path(access["passwordFile"]).read_text()
            return Credentials(access["user"], password, access["database"], tls)
        if self.key_file is None:
            return Credentials(database=EXTERNAL, tls=tls)
        log_in = Access(Path(access["keyFile"]).parent).log_in()
        return Credentials(log_in["username"], log_in["password"], log_in["authSource"], tls)

    @property
    def local(self) -> LocalCluster:
        """The launcher's functions for this cluster."""
        return _local(self.directory)

    @property
    def tls(self) -> dict[str, Any]:
        """The options of a client for TLS; none without it."""
        return Credentials(tls=self._tls_files).tls_options

    @property
    def daemon_options(self) -> tuple[str, ...]:
        """The options with which a further daemon has to be started."""
        key_file = () if self.key_file is None else ("--key-file", str(self.key_file))
        return (*key_file, *(TlsFiles(self.directory / "tls").daemon_words() if self._tls_files else ()))

    @property
    def _tls_files(self) -> Mapping[str, str]:
        files: Mapping[str, str] = self.document.get("tls", NO_TLS)
        return files

    @property
    def _tls_files_of_member(self) -> Mapping[str, str]:
        files = self._tls_files
        return {**files, "clientCertificateFile": files["memberCertificateFile"]} if files else files

    def _process(self, name: str) -> dict[str, Any]:
        return next(process for process in self.document["processes"] if process["name"] == name)


@contextmanager
def running_cluster(directory: Path, *options: str) -> Iterator[RunningCluster]:
    """Start a cluster with these options of ``up``, on free ports; after the block it is down, whatever happened.

    Its logs are kept, but not its data: the data of all clusters of a run would be tens of gigabytes.
    """
    arguments = ["--detach", "--json", "--port", "0", "--dir", str(directory)]
    arguments += ["--set-parameter", "enableTestCommands=1"]
    # It costs processor time and disk, and hundreds of mongods are started.
    arguments += ["--set-parameter", f"{DIAGNOSTIC_DATA}=false"]
    # Every five minutes, sessions would be written while a test happens to run.
    arguments += ["--set-parameter", "disableLogicalSessionCacheRefresh=true", *options]
    # The ordinary path must also work without passages.
    if is_drawn(_SHARE_WITHOUT_PASSAGES, os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]):
        arguments += ["--set-parameter", "enablePassages=false"]
    arguments += [each for each in _of_all_clusters if each not in options]
    addresses: list[str] = []
    try:
        completed = shardwright("up", *arguments)
        assert completed.returncode == 0, completed.stderr
        cluster = RunningCluster(directory, json.loads(completed.stdout))
        addresses += [process["address"] for process in cluster.document["processes"]]
        for process in cluster.document["processes"]:
            cluster.register(process["address"], is_router=process["name"].startswith("router"))
        # As MongoDB's own ShardingTest does: a test that wants the balancer starts it.
        with cluster.client() as client:
            client.admin.command("balancerStop")
            if _of_all_clusters:
                client.admin.command("createRole", _TESTER, privileges=_PRIVILEGES, roles=[])
                client.admin.command("grantRolesToUser", FIRST_USER, roles=[_TESTER])
        yield cluster
    finally:
        if (directory / "cluster.json").exists():
            _local(directory).down()
        forget_credentials(addresses)
        shutil.rmtree(directory / "data", ignore_errors=True)


def _local(directory: Path) -> LocalCluster:
    return LocalCluster(directory, Steps(StringIO()))
