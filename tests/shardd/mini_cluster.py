"""A config server and shards without a router: the surroundings of a shard daemon, where the test is the router.

Its logs are kept, but not its data: the data of all clusters of a run would be tens of gigabytes.
"""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.read_preferences import SecondaryPreferred

from shardwright.deploy.cluster_state import DIAGNOSTIC_DATA, ENABLE_TEST_COMMANDS
from shardwright.deploy.mongod import (
    connect,
    find_mongod,
    initiate,
    mongod_arguments,
    wait_members_known,
    wait_primary,
)
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.integration.waiting import eventually

Client = MongoClient[dict[str, Any]]

START_SECONDS = 60.0
MAJORITY = {"w": "majority", "wtimeout": 60_000}


@dataclass
class Process:
    """A process, and how to restart it."""

    arguments: list[str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(self.arguments, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """The pid of the process, which has been started."""
        assert self.running is not None
        return self.running.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal and wait for its end."""
        if self.running is not None:
            self.running.send_signal(number)
            self.running.wait(30)
            self.running = None


@dataclass
class Member:
    """A mongod with the daemon in front of it."""

    mongod_plan: ProcessPlan
    mongod: Process
    daemon: Process
    address: str
    metrics_port: int

    def client(self, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
        """A client of the daemon."""
        return MongoClient(f"mongodb://{self.address}/", directConnection=True, **options)

    def mongod_client(self) -> Client:
        """A client of the mongod behind it."""
        return MongoClient(f"mongodb://{self.mongod_plan.address}/", directConnection=True)

    def wait_ready(self) -> None:
        """Wait until the daemon serves."""
        with self.client(serverSelectionTimeoutMS=500) as client:

            def serves() -> bool:
                try:
                    hello = client.admin.command("hello")
                except PyMongoError:
                    return False
                return bool(hello.get("isWritablePrimary") or hello.get("secondary"))

            eventually(serves, within=START_SECONDS, what=f"{self.address} serves")

    def wait_has_all_of(self, primary: "Member") -> None:
        """Wait until majority reads here see everything that the primary has acknowledged so far."""
        with primary.mongod_client() as source, self.mongod_client() as mongod, mongod.start_session() as session:
            reply = source.admin.command("ping")
            session.advance_cluster_time(reply["$clusterTime"])  # or else it refuses a time that it has not heard of
            concern = {"level": "majority", "afterClusterTime": reply["operationTime"]}
            mongod.admin.command(
                "find", "nothing", session=session, readConcern=concern, read_preference=SecondaryPreferred()
            )

    def restart(self, process: Process) -> None:
        """Kill the daemon or the mongod, restart it and wait until the daemon serves."""
        process.stop(signal.SIGKILL)
        process.start()
        self.wait_ready()


@dataclass
class Set:
    """A replica set of mongods with daemons."""

    name: str
    members: list[Member]

    @property
    def connection_string(self) -> str:
        """``set/host:port,…`` of the daemons."""
        return f"{self.name}/{','.join(member.address for member in self.members)}"

    def client(self, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
        """A client of the set as a replica set of daemons."""
        hosts = ",".join(member.address for member in self.members)
        return MongoClient(f"mongodb://{hosts}/", replicaSet=self.name, **options)


@dataclass
class MiniCluster:
    """The cluster."""

    config: Set
    shards: dict[str, Set] = field(default_factory=dict)
    _kept: dict[str, Client] = field(default_factory=dict)

    def kept_client(self, member: Member) -> Client:
        """A client of a daemon that stays open, with its one session, until `close`."""
        if member.address not in self._kept:
            self._kept[member.address] = member.client()
        return self._kept[member.address]

    def close(self) -> None:
        """Close the clients that stayed open."""
        while self._kept:
            self._kept.popitem()[1].close()

    def config_client(self) -> Client:
        """A client of the config daemon."""
        return self.config.members[0].client()

    def shard_client(self, shard: str) -> Client:
        """A client of the first daemon of a shard."""
        return self.shards[shard].members[0].client()

    def create_database(self, db: str, primary: str) -> dict[str, Any]:
        """Create a database on a shard; returns its version."""
        reply = self._config().admin.command(
            {"_configsvrCreateDatabase": db, "primaryShardId": primary, "writeConcern": MAJORITY}
        )
        return dict(reply["databaseVersion"])

    def shard_collection(self, namespace: str, key: dict[str, Any], primary: str, **options: object) -> dict[str, Any]:
        """Shard a collection of a database whose primary shard is given; returns the reply."""
        db, _, collection = namespace.partition(".")
        version = self.create_database(db, primary)
        command = {"_shardsvrCreateCollection": collection, "shardKey": key, **options, "databaseVersion": version}
        return dict(self.kept_client(self.shards[primary].members[0])[db].command(command))

    def shard_version(self, namespace: str, shard: str) -> dict[str, Any]:
        """The version that a router would send to a shard, from the catalog."""
        config = self._config().config
        entry = config.collections.find_one({"_id": namespace})
        assert entry is not None, f"{namespace} is not sharded"
        chunks = list(config.chunks.find({"uuid": entry["uuid"], "shard": shard}))
        highest = max((chunk["lastmod"] for chunk in chunks), default=Timestamp(0, 0))
        return {"t": entry["timestamp"], "e": entry["lastmodEpoch"], "v": highest}

    def _config(self) -> Client:
        return self.kept_client(self.config.members[0])


@contextmanager
def mini_cluster(
    directory: Path,
    shards: int = 2,
    members: int | Sequence[int] = 1,
    config_parameters: Mapping[str, str] | None = None,
    *,
    has_test_commands: bool = True,
) -> Iterator[MiniCluster]:
    """Start a cluster, and stop all its processes after the block.

    Args:
        directory: for its files.
        shards: number of shards.
        members: number of members of each shard, the same for all or one for each.
        config_parameters: more server parameters of the config servers' mongod.
        has_test_commands: whether the shards' mongods have test commands, `prepareTransaction` among them.
    """
    with ExitStack() as stack:
        config = _start_set(stack, directory, "config", "configd", 1, config_parameters)
        cluster = MiniCluster(config)
        for index in range(shards):
            name = f"sh{index}"
            count = members if isinstance(members, int) else members[index]
            parameters = None if has_test_commands else {ENABLE_TEST_COMMANDS: "0"}
            cluster.shards[name] = _start_set(stack, directory, name, "shardd", count, parameters)
        stack.callback(cluster.close)  # while there is still somebody to say goodbye to
        with cluster.config_client() as client:
            for name, each in cluster.shards.items():
                client.admin.command(
                    {"_configsvrAddShard": each.connection_string, "name": name, "writeConcern": MAJORITY}
                )
        yield cluster


@contextmanager
def replica_set(directory: Path, members: int = 1, daemon: str = "shardd") -> Iterator[Set]:
    """A replica set with daemons of one kind that belongs to no cluster."""
    with ExitStack() as stack:
        yield _start_set(stack, directory, "alone", daemon, members)


def _start_set(
    stack: ExitStack,
    directory: Path,
    name: str,
    daemon: str,
    count: int,
    parameters: Mapping[str, str] | None = None,
) -> Set:
    members = [_plan_member(directory, name, daemon, index, parameters) for index in range(count)]
    for member in members:
        stack.callback(shutil.rmtree, directory / member.mongod_plan.name)
        member.mongod.start()
        stack.callback(member.mongod.stop, signal.SIGKILL)
    plans = [member.mongod_plan for member in members]
    for plan in plans:
        with connect(plan.address, START_SECONDS) as client:
            client.admin.command("ping")  # a set is initiated only once all its members are up
    initiate(name, plans, plans[0].address)
    wait_primary(name, [plan.address for plan in plans], time.monotonic() + START_SECONDS)
    for member in members:
        member.daemon.start()
        stack.callback(member.daemon.stop, signal.SIGKILL)
    for member in members:
        member.wait_ready()
    wait_members_known([member.address for member in members], time.monotonic() + START_SECONDS)
    started = Set(name, members)
    if daemon == "configd":
        _stop_balancer(started)
    return started


def _stop_balancer(config: Set) -> None:
    """Stop the balancer, as MongoDB's own ShardingTest does: a test that wants it starts it."""
    with config.client() as client:
        client.admin.command({"_configsvrBalancerStop": 1})


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; they are released together, since all processes start together."""
    with PortReservation() as reservation:
        return [reservation.hold_free() for _ in range(count)]


def _plan_member(directory: Path, name: str, daemon: str, index: int, parameters: Mapping[str, str] | None) -> Member:
    mongod_port, port, metrics_port = _free_ports(3)
    plan = ProcessPlan(f"{name}.{index}.mongod", Role.MONGOD, mongod_port, name)
    dbpath = directory / plan.name
    dbpath.mkdir()
    log = directory / f"{plan.name}.log"
    mongod = mongod_arguments(
        find_mongod(),
        plan,
        dbpath=dbpath,
        log=log,
        sockets=directory,
        cache_gb=0.25,
        parameters={DIAGNOSTIC_DATA: "false", **(parameters or {})},
    )
    arguments = [
        *(sys.executable, "-m", f"shardwright.{daemon}.main", "--port", str(port), "--metrics-port", str(metrics_port)),
        *("--mongod-socket", str(directory / plan.socket_name), "--mongod-address", plan.address),
    ]
    return Member(
        plan,
        Process(mongod, directory / f"{plan.name}.out"),
        Process(arguments, directory / f"{name}.{index}.{daemon}.log"),
        f"127.0.0.1:{port}",
        metrics_port,
    )
