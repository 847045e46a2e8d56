"""One server as its last hello described it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROUND_TRIP_WEIGHT: Final = 0.2


class ServerType(StrEnum):
    """The specification's types of servers, less the load balancer."""

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
"""Those of servers of which no hello is known."""

DATA_BEARING_TYPES: Final = frozenset({ServerType.PRIMARY, ServerType.SECONDARY})
"""Those of servers that can be read from."""


@dataclass(frozen=True)
class Server:
    """A server, as far as it is known.

    Attributes:
        address: ``host:port``, in lower case.
        type: what it is at present.
        set_name: the name of its replica set.
        hosts: all members that it reports, with passives and arbiters.
        me: the address that it takes for its own.
        primary: the member that it takes for the primary.
        set_version: the version of its replica set's configuration.
        election_id: of the election that made it primary.
        topology_version: ``processId`` and ``counter``, which orders its hellos.
        tags: its replica set tags.
        wire_versions: the oldest and the newest that it speaks.
        session_timeout_minutes: its ``logicalSessionTimeoutMinutes``.
        round_trip_seconds: smoothed time of a hello; None if not measured yet.
        last_write_ms: its ``lastWriteDate`` in milliseconds since the epoch.
        last_update_ms: when its hello came, by a clock that all servers' hellos are timed with.
        extensions: fields of requests beyond MongoDB's that it understands.
        pool_generation: how often the connections to it were found to be broken.
        error: why it is unknown, for logs.
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
        """What a reply to hello says.

        Args:
            address: where the hello was sent.
            hello: the decoded reply.
            now_ms: when it came.
            round_trip_seconds: the smoothed time that a hello takes, see `smoothed_round_trip`.
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
        """Whether its state comes from a hello."""
        return self.type not in UNKNOWN_TYPES

    def unknown(self, error: str, topology_version: Mapping[str, Any] | None = None) -> "Server":
        """The same server when its state is no longer believed."""
        return Server(
            self.address, topology_version=topology_version, pool_generation=self.pool_generation, error=error
        )

    def possible_primary(self) -> "Server":
        """The same unknown server when another member takes it for the primary."""
        return replace(self, type=ServerType.POSSIBLE_PRIMARY)


def is_topology_version_stale(
    known: Mapping[str, Any] | None, received: Mapping[str, Any] | None, *, is_equal_stale: bool
) -> bool:
    """Whether a topology version is older than the known one of the same process.

    Args:
        known: the newest so far.
        received: that of a hello or of an error.
        is_equal_stale: an error with the known version says nothing new, while a hello with it is a heartbeat.
    """
    if known is None or received is None or known["processId"] != received["processId"]:
        return False
    return bool(received["counter"] <= known["counter"] if is_equal_stale else received["counter"] < known["counter"])


def smoothed_round_trip(previous: float | None, sample: float) -> float:
    """The exponentially weighted moving average of round trips after one more of them."""
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
