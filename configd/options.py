"""How a config daemon was started."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """The options that are the config daemon's own.

    Attributes:
        address: ``host:port`` at which clients reach it.
        mongod_socket: path of the UNIX socket of its mongod.
        mongod_address: ``host:port`` of its mongod in the replica set's configuration.
        slow_ms: operations that take longer are logged.
    """

    address: str
    mongod_socket: str
    mongod_address: str
    slow_ms: int
