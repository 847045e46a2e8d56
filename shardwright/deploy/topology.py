"""The layout of a local cluster: its processes, their names, ports and replica sets. Pure data, no I/O.

A mongod and the daemon in front of it have the same position: ``shard0.1.shardd`` serves ``shard0.1.mongod``. The names
are shown by ``shardwright status`` and accepted by ``kill`` and ``restart``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Any, Self

from shardwright.deploy.errors import DeployError

CONFIG_SET = "config"
LOOPBACK = "127.0.0.1"


class Role(StrEnum):
    """The role of a process, with its name in ``--json``."""

    MONGOD = "mongod"
    CONFIGD = "configd"
    SHARDD = "shardd"
    ROUTER = "router"


@dataclass(frozen=True)
class ProcessPlan:
    """One process of the cluster, running or not.

    Attributes:
        port: its port; ``None`` for a mongod that listens on a UNIX socket alone.
        replica_set: its set, a shard's id or ``config``; ``None`` for routers.
        metrics_port: the port of a daemon's ``/metrics`` and ``/readyz``; ``None`` for mongods. Further workers of a
            router have the following ports.
    """

    name: str
    role: Role
    port: int | None
    replica_set: str | None = None
    metrics_port: int | None = None

    @property
    def address(self) -> str:
        """``host:port``; for a process without a port its socket, relative to the directory of the sockets.

        A replica set's configuration has this address, and the directory may be moved.
        """
        return f"./{self.socket_name}" if self.port is None else f"{LOOPBACK}:{self.port}"

    @property
    def socket_name(self) -> str:
        """The file name of a mongod's UNIX socket: ours for a mongod without a port, else the mongod's own choice."""
        return f"{self.name}.sock" if self.port is None else f"mongodb-{self.port}.sock"

    @property
    def metrics_address(self) -> str | None:
        """``host:port`` of its metrics endpoint."""
        return None if self.metrics_port is None else f"{LOOPBACK}:{self.metrics_port}"

    def ports(self, workers: int = 1) -> list[int]:
        """Return all ports that the process listens on."""
        own = [] if self.port is None else [self.port]
        if self.metrics_port is None:
            return own
        return [*own, *(self.metrics_port + index for index in range(workers if self.role is Role.ROUTER else 1))]


@dataclass(frozen=True)
class Size:
    """The numbers of shards, members and routers, each at least 1."""

    shards: int = 2
    members: int = 1
    config_members: int = 1
    routers: int = 1

    @classmethod
    def of(
        cls,
        shards: int | None = None,
        members: int | None = None,
        config_members: int | None = None,
        routers: int | None = None,
    ) -> Self:
        """Return the size with these numbers; ``None`` means the default."""
        given = {"shards": shards, "members": members, "config_members": config_members, "routers": routers}
        return cls(**{name: number for name, number in given.items() if number is not None})

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if number < 1:
                raise DeployError(f"--{name.replace('_', '-')} must be at least 1, not {number}")


@dataclass(frozen=True)
class Topology:
    """All processes of one cluster, in the order in which they start."""

    size: Size
    processes: tuple[ProcessPlan, ...]

    @classmethod
    def plan(
        cls,
        size: Size,
        *,
        router_port: Callable[[int], int],
        free_ports: Callable[[int], int],
        workers: int = 1,
        mongods_have_ports: bool = True,
    ) -> Self:
        """Lay out a new cluster.

        Args:
            router_port: returns the port of the router with a given index.
            free_ports: returns the first of a given number of consecutive free ports, different ones on every call.
            mongods_have_ports: whether mongods listen on more than a UNIX socket.
        """
        sets = {CONFIG_SET: size.config_members} | {f"shard{i}": size.members for i in range(size.shards)}
        mongods, sidecars = _plan_sets(sets, free_ports, mongods_have_ports=mongods_have_ports)
        routers = [
            ProcessPlan(f"router.{index}", Role.ROUTER, router_port(index), metrics_port=free_ports(workers))
            for index in range(size.routers)
        ]
        return cls(size, (*mongods, *sidecars, *routers))

    def with_shard(self, members: int, free_ports: Callable[[int], int]) -> Self:
        """Return the cluster with another shard, under the first unused name."""
        used = {plan.replica_set for plan in self.processes}
        name = next(name for name in map("shard{}".format, count()) if name not in used)
        have_ports = all(mongod.port is not None for mongod in self.of_role(Role.MONGOD))
        mongods, sidecars = _plan_sets({name: members}, free_ports, mongods_have_ports=have_ports)
        return self._with_processes([*self.processes, *mongods, *sidecars])

    def without_shard(self, shard: str) -> Self:
        """Return the cluster without the processes of a shard."""
        return self._with_processes([plan for plan in self.processes if plan.replica_set != shard])

    def of_shard(self, shard: str) -> list[ProcessPlan]:
        """Return the processes of a shard."""
        names = [each["_id"] for each in self.shards]
        if shard not in names:
            raise DeployError(f"no shard is called {shard!r}; there are {', '.join(names)}")
        return [plan for plan in self.processes if plan.replica_set == shard]

    def _with_processes(self, processes: list[ProcessPlan]) -> Self:
        start_order = list(Role)
        ordered = tuple(sorted(processes, key=lambda plan: start_order.index(plan.role)))
        shards = {plan.replica_set for plan in ordered if plan.role is Role.SHARDD}
        return replace(self, size=replace(self.size, shards=len(shards)), processes=ordered)

    def of_role(self, *roles: Role) -> list[ProcessPlan]:
        """Return the processes with one of these roles."""
        return [process for process in self.processes if process.role in roles]

    def named(self, name: str) -> ProcessPlan:
        """Return the process called ``name``."""
        for process in self.processes:
            if process.name == name:
                return process
        names = ", ".join(process.name for process in self.processes)
        raise DeployError(f"no process is called {name!r}; there are {names}")

    def replica_sets(self) -> Iterator[tuple[str, list[ProcessPlan]]]:
        """Yield each replica set with its mongods, the config set first."""
        mongods = self.of_role(Role.MONGOD)
        for name in dict.fromkeys(mongod.replica_set for mongod in mongods if mongod.replica_set):
            yield name, [mongod for mongod in mongods if mongod.replica_set == name]

    def daemon_sets(self, role: Role) -> Iterator[list[str]]:
        """Yield the addresses of each replica set's daemons of this role; nothing for routers."""
        daemons = [daemon for daemon in self.of_role(role) if daemon.replica_set]
        for name in dict.fromkeys(daemon.replica_set for daemon in daemons):
            yield [daemon.address for daemon in daemons if daemon.replica_set == name]

    def mongod_behind(self, daemon: ProcessPlan) -> ProcessPlan:
        """Return the mongod behind a configd or shardd."""
        return self.named(daemon.name.removesuffix(daemon.role) + Role.MONGOD)

    @property
    def shards(self) -> list[dict[str, str]]:
        """Each shard's ``_id`` and ``host``, a connection string with its shardds."""
        names = dict.fromkeys(shardd.replica_set for shardd in self.of_role(Role.SHARDD) if shardd.replica_set)
        return [{"_id": name, "host": self._set_address(name, Role.SHARDD)} for name in names]

    @property
    def config_string(self) -> str:
        """The config servers in the format of the router's ``--configdb``: ``config/host:port,…``."""
        return self._set_address(CONFIG_SET, Role.CONFIGD)

    @property
    def uri(self) -> str:
        """The connection string for clients, with all routers."""
        return f"mongodb://{','.join(router.address for router in self.of_role(Role.ROUTER))}/"

    def _set_address(self, replica_set: str, role: Role) -> str:
        daemons = [daemon for daemon in self.of_role(role) if daemon.replica_set == replica_set]
        return f"{replica_set}/{','.join(daemon.address for daemon in daemons)}"

    def to_document(self) -> dict[str, Any]:
        """Return the document for the state file."""
        return {"size": asdict(self.size), "processes": [asdict(process) for process in self.processes]}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Parse the result of `to_document`.

        Raises:
            KeyError, TypeError, ValueError: the document is from another version.
        """
        processes = [ProcessPlan(**{**process, "role": Role(process["role"])}) for process in document["processes"]]
        if not all(process.metrics_port for process in processes if process.role is not Role.MONGOD):
            raise KeyError("metrics_port")
        return cls(Size(**document["size"]), tuple(processes))


def _plan_sets(
    members_of: Mapping[str, int], free_ports: Callable[[int], int], *, mongods_have_ports: bool
) -> tuple[list[ProcessPlan], list[ProcessPlan]]:
    """Plan the mongods of some replica sets, and the daemons in front of them."""
    positions = [(name, index) for name, members in members_of.items() for index in range(members)]
    mongods = [
        ProcessPlan(
            f"{replica_set}.{index}.mongod", Role.MONGOD, free_ports(1) if mongods_have_ports else None, replica_set
        )
        for replica_set, index in positions
    ]
    sidecars = [
        ProcessPlan(f"{replica_set}.{index}.{role}", role, free_ports(1), replica_set, free_ports(1))
        for replica_set, index in positions
        for role in [Role.CONFIGD if replica_set == CONFIG_SET else Role.SHARDD]
    ]
    return mongods, sidecars
