"""Server selection: the servers that may serve an operation, and the choice among them."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from shardwright.wire.discovery.server import Server, ServerType
from shardwright.wire.discovery.topology import Topology, TopologyType
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import ReadPreference, has_tags

HEARTBEAT_SECONDS: Final = 10.0
"""Maximum age of a server's state."""

LATENCY_WINDOW_SECONDS: Final = 0.015

_IDLE_WRITE_SECONDS: Final = 10.0
"""Interval of the no-ops that an idle primary writes."""


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
        matching = [server for server in servers if has_tags(server.tags, tags)]
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
