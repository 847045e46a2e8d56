"""Facts about a cluster and this machine, as input for the checks of `shardwright doctor`. Pure data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from ipaddress import ip_address
from typing import Any


class Kind(Enum):
    """The program that should listen at an address."""

    ROUTER = "router"
    SHARD_DAEMON = "shard daemon"
    CONFIG_DAEMON = "config daemon"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a server.

    Attributes:
        names: its DNS names and addresses.
    """

    names: tuple[str, ...]
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One address of the cluster. Facts that are not available are None, or empty.

    Attributes:
        kind: the program that should listen there.
        replica_set: the set it should belong to.
        refusal: why no connection could be opened.
        failure: why hello failed on an open connection.
        version: of the mongod behind a daemon.
        own_version: of the daemon itself.
        options: ``getCmdLineOpts.parsed``; None if it could not be read.
        startup_warnings: messages of the mongod's log.
        unreachable_members: members of its set that it cannot reach.
        sidecars: the daemons of its set by the addresses of their mongods.
        waits_for_journal: whether majority writes of its set wait for the journal.
        disk_used: used fraction of the mongod's disk.
        clock_offset_seconds: its clock minus this machine's.
        clock_error_seconds: uncertainty of the offset.
        certificate: the certificate it presents to clients.
    """

    address: str
    kind: Kind
    replica_set: str = ""
    refusal: str | None = None
    failure: str | None = None
    hello: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    own_version: str = ""
    options: Mapping[str, Any] | None = None
    startup_warnings: tuple[str, ...] = ()
    unreachable_members: tuple[str, ...] = ()
    sidecars: Mapping[str, str] = field(default_factory=dict)
    waits_for_journal: bool | None = None
    disk_used: float | None = None
    clock_offset_seconds: float | None = None
    clock_error_seconds: float = 0.0
    certificate: Certificate | None = None

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def is_daemon(self) -> bool:
        """Whether a daemon in front of a mongod should listen there."""
        return self.kind is not Kind.ROUTER

    def option(self, path: str) -> Any:  # noqa: ANN401 - options of all types
        """Return the option at a path with dots; None if it is not set, or not known."""
        found: Any = self.options
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process on this machine.

    Attributes:
        name: as `shardwright status` shows it.
        open_files: its limit of open files.
    """

    name: str
    open_files: int | None
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """This machine.

    Attributes:
        huge_pages: the mode of transparent huge pages: ``always``, ``madvise`` or ``never``.
        read_only: directories that cannot be written.
        disks_used: used fraction of the disk, by directory.
    """

    processes: tuple[LocalProcess, ...] = ()
    huge_pages: str = ""
    read_only: tuple[str, ...] = ()
    disks_used: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a cluster.

    Attributes:
        host: this machine; None if the cluster does not run here.
        seeds: the router addresses that the user named.
    """

    servers: tuple[Server, ...]
    now: datetime
    host: Host | None = None
    seeds: tuple[str, ...] = ()

    def sets(self) -> Mapping[str, list[Server]]:
        """Group the daemons by replica set."""
        found: dict[str, list[Server]] = {}
        for server in self.servers:
            if server.is_daemon:
                found.setdefault(server.replica_set, []).append(server)
        return found

    def sidecars(self) -> Mapping[str, str]:
        """Return the registered daemons of all sets by the addresses of their mongods."""
        return {mongod: daemon for server in self.servers for mongod, daemon in server.sidecars.items()}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(address: str) -> str:
    """Return the host of ``host:port``."""
    return address.rpartition(":")[0].strip("[]")


def listed(names: Iterable[str]) -> str:
    """Join names for a sentence."""
    return ", ".join(sorted(names))
