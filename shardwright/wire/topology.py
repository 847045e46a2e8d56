"""The topology of a replica set: the state of each server by its last hello, and the next state of the set. Immutable.

Follows MongoDB's Server Discovery and Monitoring specification for replica sets, without clocks. Each hello, failed
hello and failed operation makes a new state.

A primary's list of hosts determines the members. While no primary is known, members add the hosts that they report. A
member whose set has another name, or whose own address differs from the one it was reached at, is removed. So are
standalones and routers.

A primary is accepted if its election is not older than the newest known one, because a deposed primary may still claim
to be primary. For members from MongoDB 6.0 on, ``electionId`` is compared first; for older ones, ``setVersion``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Any, Final

from shardwright.wire.error_codes import Category, ErrorCode, has_category

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROUND_TRIP_WEIGHT: Final = 0.2

_ELECTION_ID_FIRST_WIRE_VERSION: Final = 17
"""Wire version of MongoDB 6.0."""


class ServerType(StrEnum):
    """The specification's server types, except the load balancer."""

    UNKNOWN = "Unknown"
    POSSIBLE_PRIMARY = "PossiblePrimary"
    STANDALONE = "Standalone"
    MONGOS = "Mongos"
    PRIMARY = "RSPrimary"
    SECONDARY = "RSSecondary"
    ARBITER = "RSArbiter"
    OTHER = "RSOther"
    GHOST = "RSGhost"


UNKNOWN_TYPES: Final = frozenset({ServerType.UNKNOWN, ServerType.POSSIBLE_PRIMARY})
"""Types of servers without a known hello."""

_DATA_BEARING_TYPES: Final = frozenset({ServerType.PRIMARY, ServerType.SECONDARY})
"""Types of servers that can serve reads."""


@dataclass(frozen=True)
class Server:
    """Known state of a server.

    Attributes:
        address: ``host:port``, in lower case.
        hosts: all members that it reports, including passives and arbiters.
        me: its address according to itself.
        primary: the address of the primary according to it.
        set_version: the version of its replica set's configuration.
        topology_version: ``processId`` and ``counter``, which order its hellos.
        round_trip_seconds: smoothed duration of a hello; None if not measured yet.
        last_write_ms: its ``lastWriteDate`` in milliseconds since the epoch.
        last_update_ms: when its hello was received, by a clock common to all servers' hellos.
        extensions: the extensions of MongoDB's protocol that it announces.
        pool_generation: the number of times its connections have been declared broken.
        error: why its state is unknown, for logs.
    """

    address: str
    type: ServerType = ServerType.UNKNOWN
    set_name: str | None = None
    hosts: frozenset[str] = frozenset()
    me: str | None = None
    primary: str | None = None
    set_version: int | None = None
    election_id: bytes | None = None
    topology_version: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    wire_versions: tuple[int, int] = (0, 0)
    session_timeout_minutes: int | None = None
    round_trip_seconds: float | None = None
    last_write_ms: int = 0
    last_update_ms: int = 0
    extensions: frozenset[str] = frozenset()
    pool_generation: int = 0
    error: str = ""

    @classmethod
    def from_hello(
        cls, address: str, hello: Mapping[str, Any], *, now_ms: int = 0, round_trip_seconds: float | None = None
    ) -> "Server":
        """Build the state described by a reply to hello.

        Args:
            round_trip_seconds: the smoothed duration of a hello, see `smoothed_round_trip`.
        """
        if not hello.get("ok"):
            return cls(address, error="hello failed")
        primary, me, election_id = hello.get("primary"), hello.get("me"), hello.get("electionId")
        return cls(
            address,
            type=_type_of(hello),
            set_name=hello.get("setName"),
            hosts=frozenset(host.lower() for name in ("hosts", "passives", "arbiters") for host in hello.get(name, ())),
            me=me.lower() if me else None,
            primary=primary.lower() if primary else None,
            set_version=hello.get("setVersion"),
            election_id=election_id.binary if election_id is not None else None,
            topology_version=hello.get("topologyVersion"),
            tags=hello.get("tags", {}),
            wire_versions=(hello.get("minWireVersion", 0), hello.get("maxWireVersion", 0)),
            session_timeout_minutes=hello.get("logicalSessionTimeoutMinutes"),
            round_trip_seconds=round_trip_seconds,
            last_write_ms=_last_write_ms(hello),
            last_update_ms=now_ms,
            extensions=frozenset(hello.get("extensions", ())),
        )

    @property
    def is_known(self) -> bool:
        """Whether the state comes from a hello."""
        return self.type not in UNKNOWN_TYPES

    def unknown(self, error: str, topology_version: Mapping[str, Any] | None = None) -> "Server":
        """Return the same server with unknown state."""
        return Server(
            self.address, topology_version=topology_version, pool_generation=self.pool_generation, error=error
        )

    def possible_primary(self) -> "Server":
        """Return the same unknown server after another member has named it as primary."""
        return replace(self, type=ServerType.POSSIBLE_PRIMARY)


def _is_topology_version_stale(
    known: Mapping[str, Any] | None, received: Mapping[str, Any] | None, *, is_equal_stale: bool
) -> bool:
    """Whether a topology version is older than the known one of the same process.

    Args:
        is_equal_stale: True for errors, which carry no news at the known version; False for hellos, which are
            heartbeats then.
    """
    if known is None or received is None or known["processId"] != received["processId"]:
        return False
    return bool(received["counter"] <= known["counter"] if is_equal_stale else received["counter"] < known["counter"])


def smoothed_round_trip(previous: float | None, sample: float) -> float:
    """Update the exponentially weighted moving average of round trips with a sample."""
    if previous is None:
        return sample
    return _ROUND_TRIP_WEIGHT * sample + (1 - _ROUND_TRIP_WEIGHT) * previous


def _type_of(hello: Mapping[str, Any]) -> ServerType:
    if hello.get("isreplicaset"):
        return ServerType.GHOST
    if hello.get("msg") == "isdbgrid":
        return ServerType.MONGOS
    if not hello.get("setName"):
        return ServerType.STANDALONE
    if hello.get("hidden"):
        return ServerType.OTHER
    if hello.get("isWritablePrimary") or hello.get("ismaster"):
        return ServerType.PRIMARY
    if hello.get("secondary"):
        return ServerType.SECONDARY
    return ServerType.ARBITER if hello.get("arbiterOnly") else ServerType.OTHER


def _last_write_ms(hello: Mapping[str, Any]) -> int:
    date: datetime | None = hello.get("lastWrite", {}).get("lastWriteDate")
    if date is None:
        return 0
    utc = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return (utc - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True)
class Election:
    """The two values that order elections. Either may be missing; a missing one is older than any value."""

    election_id: bytes | None = None
    set_version: int | None = None

    @classmethod
    def of(cls, primary: Server) -> "Election":
        """Return the election that a primary reports."""
        return cls(primary.election_id, primary.set_version)

    def is_older_than(self, newest: "Election", wire_version: int) -> bool:
        """Whether a primary of this election, with this newest wire version, has been deposed."""
        if wire_version >= _ELECTION_ID_FIRST_WIRE_VERSION:
            return self._by_election_id() < newest._by_election_id()
        if not self._is_complete or not newest._is_complete:
            return False
        return self._by_set_version() < newest._by_set_version()

    def merged_with(self, election: "Election", wire_version: int) -> "Election":
        """Return the newest known election after a primary of ``election`` was accepted; so far it was this one."""
        if wire_version >= _ELECTION_ID_FIRST_WIRE_VERSION:
            return election
        versions = [each for each in (self.set_version, election.set_version) if each is not None]
        return Election(
            election.election_id if election._is_complete else self.election_id, max(versions, default=None)
        )

    @property
    def _is_complete(self) -> bool:
        return self.election_id is not None and self.set_version is not None

    def _by_election_id(self) -> tuple[bytes, int]:
        return (self.election_id or b"", -1 if self.set_version is None else self.set_version)

    def _by_set_version(self) -> tuple[int, bytes]:
        election_id, set_version = self._by_election_id()
        return set_version, election_id


NO_ELECTION: Final = Election()

WIRE_VERSION_MIN: Final = 9
"""Wire version of MongoDB 4.4, as in current drivers."""
WIRE_VERSION_MAX: Final = 29


class TopologyType(StrEnum):
    """The specification's topology types for replica sets."""

    UNKNOWN = "Unknown"
    NO_PRIMARY = "ReplicaSetNoPrimary"
    WITH_PRIMARY = "ReplicaSetWithPrimary"


@dataclass(frozen=True)
class Topology:
    """A replica set.

    Attributes:
        set_name: its name; None if it was not given and no member has reported one yet.
        servers: its members and possible members, by address.
        newest_election: the newest election that a primary has reported.
    """

    set_name: str | None
    servers: Mapping[str, Server]
    newest_election: Election = NO_ELECTION

    @classmethod
    def of(cls, set_name: str | None, seeds: Iterable[str]) -> "Topology":
        """Return the state before any hello."""
        return cls(set_name, {address.lower(): Server(address.lower()) for address in seeds})

    @property
    def type(self) -> TopologyType:
        """The specification's type: whether there is a replica set, and whether it has a primary."""
        if self.set_name is None:
            return TopologyType.UNKNOWN
        return TopologyType.NO_PRIMARY if self.primary is None else TopologyType.WITH_PRIMARY

    @property
    def primary(self) -> Server | None:
        """The primary, if one is known."""
        return next((server for server in self.servers.values() if server.type is ServerType.PRIMARY), None)

    @property
    def is_compatible(self) -> bool:
        """Whether each member supports a wire version that we support too."""
        return all(
            server.wire_versions[0] <= WIRE_VERSION_MAX and server.wire_versions[1] >= WIRE_VERSION_MIN
            for server in self.servers.values()
            if server.is_known
        )

    @property
    def session_timeout_minutes(self) -> int | None:
        """Idle minutes after which members may end a session; None if one of them does not support sessions."""
        minutes = [
            server.session_timeout_minutes for server in self.servers.values() if server.type in _DATA_BEARING_TYPES
        ]
        known = [each for each in minutes if each is not None]
        return min(known) if known and len(known) == len(minutes) else None

    def after_hello(self, server: Server) -> "Topology":
        """Return the state after a hello; the same object if the server is not a member or the hello is outdated."""
        previous = self.servers.get(server.address)
        if previous is None:
            return self
        if _is_topology_version_stale(previous.topology_version, server.topology_version, is_equal_stale=False):
            return self
        server = replace(server, pool_generation=previous.pool_generation)
        if server.type in _NOT_OF_A_SET:
            return self._without(server.address)
        if server.type in _NOT_IN_A_SET_NOW:
            return self._with(server)
        named = replace(self, set_name=self.set_name or server.set_name)
        if server.set_name != named.set_name:
            return named._without(server.address)
        if server.type is ServerType.PRIMARY:
            return named._after_primary(server)
        return named._after_member(server)

    def after_failed_check(self, address: str, error: str) -> "Topology":
        """Return the state after an unanswered hello, which also declares the connections to the server broken."""
        server = self.servers.get(address)
        if server is None:
            return self
        unknown = server.unknown(error)
        return self._with(replace(unknown, pool_generation=server.pool_generation + server.is_known))

    def with_unknown(self, server: Server) -> "Topology":
        """Return the state after a member became unknown for a reason other than its hello."""
        return self._with(server) if server.address in self.servers else self

    def _after_primary(self, server: Server) -> "Topology":
        election = Election.of(server)
        if election.is_older_than(self.newest_election, server.wire_versions[1]):
            return self._with(server.unknown("primary marked stale due to electionId/setVersion mismatch"))
        servers = {
            address: other.unknown("primary marked stale due to discovery of newer primary")
            if other.type is ServerType.PRIMARY
            else other
            for address, other in self.servers.items()
        }
        servers[server.address] = server
        members = {host: servers.get(host) or Server(host) for host in sorted(server.hosts)}
        newest = self.newest_election.merged_with(election, server.wire_versions[1])
        return replace(self, servers=members, newest_election=newest)

    def _after_member(self, server: Server) -> "Topology":
        after = self._with(server)
        if self.primary is None:
            added = {host: Server(host) for host in sorted(server.hosts) if host not in after.servers}
            after = replace(after, servers={**after.servers, **added})
        if server.me is not None and server.me != server.address:
            after = after._without(server.address)
        if after.primary is None and server.primary is not None:
            hinted = after.servers.get(server.primary)
            if hinted is not None and hinted.type is ServerType.UNKNOWN:
                after = after._with(hinted.possible_primary())
        return after

    def _with(self, server: Server) -> "Topology":
        return replace(self, servers={**self.servers, server.address: server})

    def _without(self, address: str) -> "Topology":
        return replace(self, servers={each: server for each, server in self.servers.items() if each != address})


_NOT_OF_A_SET: Final = frozenset({ServerType.STANDALONE, ServerType.MONGOS})
_NOT_IN_A_SET_NOW: Final = frozenset({ServerType.UNKNOWN, ServerType.POSSIBLE_PRIMARY, ServerType.GHOST})

_SHUTDOWN_CODES: Final = frozenset({ErrorCode.InterruptedAtShutdown, ErrorCode.ShutdownInProgress})
_LEGACY_NOT_PRIMARY: Final = 10058
_KEEPS_CONNECTIONS_WIRE_VERSION: Final = 8
"""Wire version of MongoDB 4.2, since which a member keeps its connections when it steps down."""


class Failure(Enum):
    """Kind of failure of an operation."""

    COMMAND = auto()
    NETWORK = auto()
    TIMEOUT = auto()


@dataclass(frozen=True)
class ApplicationError:
    """The failure of an operation.

    Attributes:
        generation: the pool's generation when the connection was opened; None for the current one.
        wire_version: the server's newest wire version.
    """

    address: str
    failure: Failure
    code: int = 0
    topology_version: Mapping[str, Any] | None = None
    generation: int | None = None
    is_after_handshake: bool = True
    wire_version: int = _KEEPS_CONNECTIONS_WIRE_VERSION


def after_application_error(topology: Topology, error: ApplicationError) -> Topology:
    """Return the state after an operation failed; the same object if the failure implies nothing new about the server.

    A higher ``pool_generation`` means that the connections to the server should be closed.
    """
    server = topology.servers.get(error.address)
    if server is None or _is_stale(server, error):
        return topology
    if error.failure is Failure.NETWORK and error.is_after_handshake:
        unknown = server.unknown("an operation met a network error")
        return topology.with_unknown(replace(unknown, pool_generation=server.pool_generation + 1))
    if error.failure is Failure.COMMAND and is_state_change(error.code):
        unknown = server.unknown("an operation met a state change error", error.topology_version)
        must_clear = error.code in _SHUTDOWN_CODES or error.wire_version < _KEEPS_CONNECTIONS_WIRE_VERSION
        return topology.with_unknown(replace(unknown, pool_generation=server.pool_generation + must_clear))
    return topology


def is_state_change(code: int) -> bool:
    """Whether an error code means that a server is not primary, is recovering or is shutting down."""
    return code == _LEGACY_NOT_PRIMARY or code in _SHUTDOWN_CODES or has_category(code, Category.NOT_PRIMARY)


def _is_stale(server: Server, error: ApplicationError) -> bool:
    if error.generation is not None and error.generation < server.pool_generation:
        return True
    return _is_topology_version_stale(server.topology_version, error.topology_version, is_equal_stale=True)
