"""Effects of a failed operation on the known state of its server."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

from shardwright.wire.discovery.server import Server, is_topology_version_stale
from shardwright.wire.discovery.topology import Topology
from shardwright.wire.error_codes import Category, ErrorCode, has_category

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
    return is_topology_version_stale(server.topology_version, error.topology_version, is_equal_stale=True)
