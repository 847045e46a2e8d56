"""What `shardwright doctor` knows of a cluster and of this machine, before it judges. Pure data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from ipaddress import ip_address
from typing import Any


class Kind(Enum):
    """What is supposed to listen at an address."""

    ROUTER = "router"
    SHARD_DAEMON = "shard daemon"
    CONFIG_DAEMON = "config daemon"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a server.

    Attributes:
        names: the DNS names and addresses that it is for.
        expires: the end of its validity.
    """

    names: tuple[str, ...]
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One address of the cluster. Facts that could not be had are None, or empty.

    Attributes:
        address: ``host:port``.
        kind: what is supposed to listen there.
        replica_set: the set it is supposed to belong to.
        refusal: why no connection could be opened.
        failure: why no hello was answered on a connection that could be opened.
        hello: its reply.
        version: of the mongod behind a daemon.
        own_version: of the daemon itself.
        options: ``getCmdLineOpts.parsed``; None if it could not be read.
        startup_warnings: messages of the mongod's log.
        unreachable_members: members of its set that it cannot reach.
        sidecars: the daemons of its set by the addresses of their mongods.
        waits_for_journal: whether majority writes of its set wait for the journal.
        disk_used: fraction of the mongod's disk.
        clock_offset_seconds: how far its clock is ahead of this machine's.
        clock_error_seconds: how much that may be wrong.
        certificate: what it shows to clients.
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
        """Whether a daemon in front of a mongod is supposed to listen there."""
        return self.kind is not Kind.ROUTER

    def option(self, path: str) -> Any:  # noqa: ANN401 - options of all types
        """The option at a path with dots; None if it is not set, or not known."""
        found: Any = self.options
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process on this machine.

    Attributes:
        name: as `shardwright status` shows it.
        open_files: how many files it may have open.
        directories: where it writes.
    """

    name: str
    open_files: int | None
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """This machine.

    Attributes:
        processes: of the cluster.
        huge_pages: the mode of transparent huge pages: ``always``, ``madvise`` or ``never``.
        read_only: directories that cannot be written.
        disks_used: fractions of the disks of directories.
    """

    processes: tuple[LocalProcess, ...] = ()
    huge_pages: str = ""
    read_only: tuple[str, ...] = ()
    disks_used: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known.

    Attributes:
        servers: the routers and daemons.
        now: the time.
        host: this machine; None if the cluster does not run here.
        seeds: addresses at which the cluster was looked for.
    """

    servers: tuple[Server, ...]
    now: datetime
    host: Host | None = None
    seeds: tuple[str, ...] = ()

    def sets(self) -> Mapping[str, list[Server]]:
        """The daemons by their replica sets."""
        found: dict[str, list[Server]] = {}
        for server in self.servers:
            if server.is_daemon:
                found.setdefault(server.replica_set, []).append(server)
        return found

    def sidecars(self) -> Mapping[str, str]:
        """The registered daemons of all sets by the addresses of their mongods."""
        return {mongod: daemon for server in self.servers for mongod, daemon in server.sidecars.items()}


def is_loopback(host: str) -> bool:
    """Whether only this machine can mean itself by a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(address: str) -> str:
    """The host of ``host:port``."""
    return address.rpartition(":")[0].strip("[]")


def listed(names: Iterable[str]) -> str:
    """Names for a sentence."""
    return ", ".join(sorted(names))
