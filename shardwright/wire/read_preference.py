"""Read preference, and server selection by it: the replica set members that may serve an operation, and the choice.

Follows MongoDB's Server Selection specification for replica sets. The state of the members is in `wire.topology`.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.decimal128 import Decimal128

from shardwright.wire.arguments import clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import is_string, type_name_of
from shardwright.wire.topology import Server, ServerType, Topology, TopologyType

READ_PREFERENCE: Final = b"$readPreference"
"""Name of the field, which any command may have."""

_MODES: Final = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_STALENESS_SECONDS_MIN: Final = 90
_NO_STRING: Final = 13111

HEARTBEAT_SECONDS: Final = 10.0
"""Maximum age of a server's state."""

LATENCY_WINDOW_SECONDS: Final = 0.015

_IDLE_WRITE_SECONDS: Final = 10.0
"""Interval of the no-ops that an idle primary writes."""


@dataclass(frozen=True)
class ReadPreference:
    """A mode with its tag sets and maximum staleness (0: no limit).

    Invalid tag sets and tags are kept: the selection of members refuses or ignores them.
    """

    mode: str = "primary"
    tag_sets: tuple[Any, ...] = ()
    max_staleness_seconds: int = 0

    @classmethod
    def parse(cls, document: object) -> "ReadPreference":
        """Parse the value of `READ_PREFERENCE`.

        Raises:
            CommandError: TypeMismatch; NoSuchKey without a mode; BadValue, an unknown mode, or tags or staleness with
                mode primary; InvalidOptions, hedged reads with it; 40415; MaxStalenessOutOfRange.
        """
        if not isinstance(document, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"$readPreference has incorrect type: expected object but got {type_name_of(document)}",
            )
        mode = _mode(document)
        _check_hedge(mode, document)
        tag_sets = document.get("tags", [])
        if not isinstance(tag_sets, list):
            raise _wrong_type("tags", "array", tag_sets)
        if mode == "primary" and any(tag_sets):
            raise CommandError(ErrorCode.BadValue, "Only empty tags are allowed with primary read preference")
        staleness = _staleness(document.get("maxStalenessSeconds", 0))
        if staleness and mode == "primary":
            raise CommandError(ErrorCode.BadValue, "maxStalenessSeconds can not be set for the primary mode")
        if 0 < staleness < _STALENESS_SECONDS_MIN:
            raise CommandError(
                ErrorCode.MaxStalenessOutOfRange,
                f"maxStalenessSeconds value can not be less than {_STALENESS_SECONDS_MIN}",
            )
        return cls(mode, tuple(tag_sets), staleness)


def _has_tags(tags: Mapping[str, str], wanted: object) -> bool:
    """Whether a member has all ``wanted`` tags, one of the ``tag_sets``; False if ``wanted`` is not a set.

    Raises 13111 if a wanted tag is not a string.
    """
    if not isinstance(wanted, Mapping):
        return False
    for name, tag in wanted.items():
        if not is_string(tag):
            raise CommandError(_NO_STRING, f"wrong type for field ({name}) {type_name_of(tag)} != string")
        if tags.get(name) != tag:
            return False
    return True


def _mode(document: Mapping[str, Any]) -> str:
    if "mode" not in document:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "mode"')
    mode = document["mode"]
    if not is_string(mode):
        raise _wrong_type("mode", "string", mode)
    if mode not in _MODES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Could not parse $readPreference mode '{mode}'. Only the modes 'primary', 'primaryPreferred', "
            "'secondary', 'secondaryPreferred', and 'nearest' are supported. :: caused by :: "
            f"Enumeration value '{mode}' for field 'mode' is not a valid value.",
        )
    return mode


def _check_hedge(mode: str, document: Mapping[str, Any]) -> None:
    """Check the options of hedged reads, which are validated but not implemented."""
    if "hedge" not in document:
        return
    hedge = document["hedge"]
    if not isinstance(hedge, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch, f"hedge field must be of type object if provided; found hedge: {hedge}"
        )
    for name, value in hedge.items():
        if name not in ("enabled", "delay"):
            raise unknown_field(f"hedge.{name}")
        if value is not None and not isinstance(value, bool):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"BSON field 'hedge.{name}' is the wrong type '{type_name_of(value)}', expected type 'bool'",
            )
    if mode == "primary" and hedge.get("enabled") is not False:
        raise CommandError(ErrorCode.InvalidOptions, 'cannot enable hedging for $readPreference mode "primaryOnly"')


def _staleness(value: Any) -> int:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'Expected field "maxStalenessSeconds" to have numeric type, but found {type_name_of(value)}',
        )
    seconds = clamp_int64(value)
    if isinstance(value, float) and seconds != value:
        shown = str(value)
        raise CommandError(
            ErrorCode.BadValue,
            'Expected field "maxStalenessSeconds" to have a value exactly representable as a 64-bit integer, '
            f"but found maxStalenessSeconds: {shown if '.' in shown else shown + '.0'}",
        )
    if seconds < 0:
        raise CommandError(ErrorCode.BadValue, "maxStalenessSeconds must be a non-negative integer")
    return seconds


def _wrong_type(name: str, expected: str, value: object) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch,
        f'"{name}" had the wrong type. Expected {expected}, found {type_name_of(value)}',
    )


PRIMARY: Final = ReadPreference()
PRIMARY_PREFERRED: Final = ReadPreference("primaryPreferred")


def suitable_servers(
    topology: Topology,
    preference: ReadPreference,
    *,
    deprioritized: Collection[str] = (),
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> Sequence[Server]:
    """Return the servers that a read preference allows, regardless of latency.

    Args:
        preference: mode, tags and staleness; the mode ``primary`` for writes.
        deprioritized: addresses of servers that are chosen only if no other is suitable.

    Raises:
        CommandError: MaxStalenessOutOfRange, the maximum is too small to be checked with heartbeats; 13111, a tag is
            not a string.
    """
    if topology.type is TopologyType.UNKNOWN or not topology.is_compatible:
        return ()
    staleness = preference.max_staleness_seconds
    if staleness and staleness < heartbeat_seconds + _IDLE_WRITE_SECONDS:
        raise CommandError(
            ErrorCode.MaxStalenessOutOfRange,
            f"maxStalenessSeconds value can not be less than {heartbeat_seconds + _IDLE_WRITE_SECONDS:.0f}",
        )
    servers = list(topology.servers.values())
    preferred = [server for server in servers if server.address not in deprioritized]
    return _suitable(preferred, preference, heartbeat_seconds) or (
        _suitable(servers, preference, heartbeat_seconds) if deprioritized else ()
    )


def in_latency_window(servers: Sequence[Server]) -> Sequence[Server]:
    """Return the servers whose round trip exceeds the nearest server's by at most `LATENCY_WINDOW_SECONDS`."""
    if len(servers) <= 1:
        return servers
    limit = min(server.round_trip_seconds or 0.0 for server in servers) + LATENCY_WINDOW_SECONDS
    return [server for server in servers if (server.round_trip_seconds or 0.0) <= limit]


def least_busy_of_two(servers: Sequence[Server], in_progress: Callable[[str], int]) -> Server:
    """Pick two servers at random and return the one with fewer of our operations in progress."""
    if len(servers) == 1:
        return servers[0]
    first, second = random.sample(servers, 2)
    return first if in_progress(first.address) <= in_progress(second.address) else second


def _suitable(servers: Sequence[Server], preference: ReadPreference, heartbeat_seconds: float) -> Sequence[Server]:
    primary = [server for server in servers if server.type is ServerType.PRIMARY]
    mode = preference.mode
    if mode == "primary" or (mode == "primaryPreferred" and primary):
        return primary
    secondaries = [server for server in servers if server.type is ServerType.SECONDARY]
    fresh = _fresh(primary, secondaries, preference.max_staleness_seconds, heartbeat_seconds)
    if mode == "nearest":
        return _tagged([*primary, *fresh], preference)
    return _tagged(fresh, preference) or (primary if mode == "secondaryPreferred" else ())


def _tagged(servers: Sequence[Server], preference: ReadPreference) -> Sequence[Server]:
    if not preference.tag_sets:
        return servers
    for tags in preference.tag_sets:
        matching = [server for server in servers if _has_tags(server.tags, tags)]
        if matching:
            return matching
    return ()


def _fresh(
    primary: Sequence[Server], secondaries: Sequence[Server], staleness_max: int, heartbeat_seconds: float
) -> Sequence[Server]:
    """Return the secondaries whose estimated replication lag is at most ``staleness_max`` seconds."""
    if not staleness_max or not secondaries:
        return secondaries
    newest = max(server.last_write_ms for server in secondaries)

    def staleness_ms(server: Server) -> float:
        lag = _lag_ms(server) - _lag_ms(primary[0]) if primary else newest - server.last_write_ms
        return lag + heartbeat_seconds * 1_000

    return [server for server in secondaries if staleness_ms(server) <= staleness_max * 1_000]


def _lag_ms(server: Server) -> int:
    return server.last_update_ms - server.last_write_ms
