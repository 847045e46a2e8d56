"""The topology of a replica set: each hello, or failure to get one, leads from one immutable state to the next.

A primary's list of hosts determines the members. While no primary is known, members add the hosts that they report. A
primary is accepted if its election is not older than the newest known one (`wire.discovery.elections`). A member whose
set has another name, or whose own address differs from the one it was reached at, is removed. So are standalones and
routers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from shardwright.wire.discovery.elections import NO_ELECTION, Election
from shardwright.wire.discovery.server import DATA_BEARING_TYPES, Server, ServerType, is_topology_version_stale

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
            server.session_timeout_minutes for server in self.servers.values() if server.type in DATA_BEARING_TYPES
        ]
        known = [each for each in minutes if each is not None]
        return min(known) if known and len(known) == len(minutes) else None

    def after_hello(self, server: Server) -> "Topology":
        """Return the state after a hello; the same object if the server is not a member or the hello is outdated."""
        previous = self.servers.get(server.address)
        if previous is None:
            return self
        if is_topology_version_stale(previous.topology_version, server.topology_version, is_equal_stale=False):
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
