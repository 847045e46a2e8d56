"""How the sidecar of a mongod was started."""

import argparse
from dataclasses import dataclass

from daemon.options import argument, known_address, parse_host_and_port


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """The options that the sidecars have in common.

    Attributes:
        address: ``host:port`` at which clients reach the daemon.
        mongod_socket: path of the UNIX socket of its mongod.
        mongod_address: ``host:port`` of its mongod in the replica set's configuration.
        slow_ms: operations that take longer are logged.
    """

    address: str
    mongod_socket: str
    mongod_address: str
    slow_ms: int

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> "SidecarOptions":
        """The options as they were parsed."""
        return cls(known_address(parsed), parsed.mongod_socket, str(parsed.mongod_address), parsed.slow_ms)


def add_sidecar_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--mongod-socket`` and ``--mongod-address``."""
    parser.add_argument("--mongod-socket", required=True, metavar="PATH", help="the UNIX socket of the mongod")
    parser.add_argument(
        "--mongod-address",
        required=True,
        type=argument(parse_host_and_port),
        metavar="HOST:PORT",
        help="the mongod as the configuration of its replica set names it",
    )
