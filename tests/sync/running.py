"""``shardwright sync`` as a process, and the clusters between which it replicates."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.json_util import loads
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from bench.mongods import primary_mongod
from shardwright.deploy.mongod import connect, initiate, mongod_arguments, wait_primary
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role

WAIT_SECONDS: Final = 120.0
WAITS_MAX: Final = 5
"""Number of such waits in a test while there is progress, because a machine may be slow."""

Client = MongoClient[dict[str, Any]]
Progress = Mapping[str, Any]

_RAW: Final = CodecOptions(document_class=RawBSONDocument)
_DEFAULTS: Final = {"validator": {}, "validationLevel": "strict", "validationAction": "error"}
"""The values of missing options; a ``collMod`` writes them down."""
_OWN: Final = ("admin", "config", "local", "shardwright")


@contextmanager
def replica_set(mongod: str, directory: Path, name: str, *options: str) -> Iterator[str]:
    """A replica set of one member; yields its connection string."""
    with PortReservation() as ports:
        plan = ProcessPlan(name, Role.MONGOD, ports.hold_free(), name)
        ports.release(*plan.ports())
        with primary_mongod(mongod, plan, directory / name, 0.25, *options):
            yield f"mongodb://{plan.address}/?replicaSet={name}"


class RestartableSet:
    """A replica set of one member that can be killed and started again.

    Attributes:
        uri: its connection string.
    """

    def __init__(self, mongod: str, directory: Path, name: str) -> None:
        with PortReservation() as ports:
            self._plan = ProcessPlan(name, Role.MONGOD, ports.hold_free(), name)
            ports.release(*self._plan.ports())
        self._name = name
        self.uri = f"mongodb://{self._plan.address}/?replicaSet={name}"
        data = directory / name
        data.mkdir(parents=True)
        log = data / "mongod.log"
        self._arguments = mongod_arguments(
            mongod, self._plan, dbpath=data, log=log, sockets=data, cache_gb=0.25, parameters={}
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is primary."""
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with connect(self._plan.address, WAIT_SECONDS) as client:
            client.admin.command("ping")
        initiate(self._name, [self._plan], self._plan.address)
        wait_primary(self._name, [self._plan.address], time.monotonic() + WAIT_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass
class Command:
    """A ``shardwright sync`` that has ended."""

    status: int
    output: str
    errors: str


class SyncProcess:
    """A ``shardwright sync --json`` that runs.

    Attributes:
        lines: the progress that it has printed.
        directory: has the address of its API.
    """

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._errors = directory / f"errors.{time.monotonic_ns()}"
        self._environment = environment(directory)
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shardwright.deploy.cli", "sync", *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
            )
        self.lines: list[Progress] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(loads(line))
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()

    @property
    def errors(self) -> str:
        """The output on standard error."""
        return self._errors.read_text()

    @property
    def id(self) -> str:
        """The id of its replication."""
        return self.errors.partition("replication ")[2].split()[0]

    def wait_for(self, condition: Callable[[Progress], bool]) -> Progress:
        """Wait until a condition is true of the progress, as long as there is progress."""
        with self._changed:

            def is_over() -> bool:
                return bool(self.lines and condition(self.lines[-1])) or self.process.poll() is not None

            for _ in range(WAITS_MAX):
                before = self._work
                if self._changed.wait_for(is_over, WAIT_SECONDS) or self._work == before:
                    break
            assert is_over(), (self.lines[-1:], self.errors)
            assert self.lines, self.errors
            assert condition(self.lines[-1]), (self.lines[-1], self.errors)
            return self.lines[-1]

    @property
    def _work(self) -> list[object]:
        """The progress so far, for comparisons."""
        names = ("collectionCopy", "eventsApplied", "counters", "verification")
        return [self.lines[-1].get(name) if self.lines else None for name in names]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, or the process has ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition() or self.process.poll() is not None, WAIT_SECONDS)

    def wait_followed(self, source: Client) -> Progress:
        """Wait until the target has equalled a state of the source that is not earlier than now."""
        now = source.admin.command("ping")["operationTime"]

        def is_there(progress: Progress) -> bool:
            consistent = progress.get("lastConsistentTime")
            return consistent is not None and consistent["source"] >= now

        return self.wait_for(is_there)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End it if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT_SECONDS)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def syncing(directory: Path, *arguments: str) -> Iterator[SyncProcess]:
    """A running ``shardwright sync``, which is ended after the block."""
    process = SyncProcess(directory, *arguments)
    try:
        yield process
    finally:
        process.close()


def run_sync(directory: Path, *arguments: str) -> Command:
    """Run ``shardwright sync`` until it ends."""
    completed = subprocess.run(
        [sys.executable, "-m", "shardwright.deploy.cli", "sync", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env=environment(directory),
    )
    return Command(completed.returncode, completed.stdout, completed.stderr)


def environment(directory: Path) -> dict[str, str]:
    """The environment of the command: the addresses of APIs are in a directory of the test."""
    return {**os.environ, "XDG_STATE_HOME": str(directory)}


class Ends:
    """A source and a target, both empty."""

    def __init__(self, source: str, target: str, directory: Path) -> None:
        self.uris = source, target
        self.directory = directory
        self.source: Client = MongoClient(source)
        self.target: Client = MongoClient(target)

    def empty(self) -> None:
        """Drop everything."""
        for client in (self.source, self.target):
            for name in client.list_database_names():
                if name not in ("admin", "config", "local"):
                    client.drop_database(name)

    def close(self) -> None:
        """Leave nothing."""
        for client in (self.source, self.target):
            client.admin.command({"setUserWriteBlockMode": 1, "global": False})
        self.empty()
        self.source.close()
        self.target.close()

    def syncing(self, *options: str) -> Any:  # noqa: ANN401 - a context manager
        """Follow continuously."""
        return syncing(self.directory, *self.uris, "--continuous", *options)

    def run(self, *options: str) -> Any:  # noqa: ANN401 - what `run_sync` returns
        """Replicate once."""
        return run_sync(self.directory, *self.uris, *options)


def contents(client: Client) -> dict[str, Any]:
    """Read everything that is replicated, without the tested code."""
    found: dict[str, Any] = {}
    for database in client.list_database_names():
        if database in _OWN:
            continue
        for each in client[database].list_collections():
            if each["name"].startswith("system."):
                continue
            namespace = f"{database}.{each['name']}"
            if each["type"] == "view":
                found[namespace] = each["options"]
                continue
            raw: Any = client[database].get_collection(each["name"], codec_options=_RAW)
            documents = sorted(bytes(document.raw) for document in raw.find())
            try:
                indexes = {index["name"]: _plain(index) for index in client[database][each["name"]].list_indexes()}
            except OperationFailure as error:
                if error.code != 26:
                    raise
                indexes = {}
            options = {name: value for name, value in each["options"].items() if _DEFAULTS.get(name) != value}
            found[namespace] = documents, indexes, options
    return found


def _plain(index: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name not in ("v", "ns", "expireAfterSeconds")}
