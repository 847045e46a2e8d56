"""State of one server according to its last hello."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROUND_TRIP_WEIGHT: Final = 0.2


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

DATA_BEARING_TYPES: Final = frozenset({ServerType.PRIMARY, ServerType.SECONDARY})
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


def is_topology_version_stale(
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
