"""The command line options of all sidecars."""

import argparse
import os
from dataclasses import dataclass
from typing import Final

from shardwright.daemon.options import argument, known_address, parse_host_and_port

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sockaddr_un`` holds 108 bytes, including the terminating null."""


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
        """The options from the parsed command line."""
        return cls(known_address(parsed), parsed.mongod_socket, str(parsed.mongod_address), parsed.slow_ms)


def add_sidecar_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--mongod-socket``, ``--mongod-tls`` and ``--mongod-address``."""
    parser.add_argument(
        "--mongod-socket",
        required=True,
        type=argument(_parse_socket_path),
        metavar="PATH",
        help="the UNIX socket of the mongod",
    )
    parser.add_argument(
        "--mongod-tls",
        action="store_true",
        help="use TLS on this socket, because the mongod has --tlsMode requireTLS",
    )
    parser.add_argument(
        "--mongod-address",
        required=True,
        type=argument(parse_host_and_port),
        metavar="HOST:PORT",
        help="the mongod's address in the configuration of its replica set",
    )


def secured_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """The sockets at which the mongod asks for TLS."""
    return (parsed.mongod_socket,) if parsed.mongod_tls else ()


def _parse_socket_path(text: str) -> str:
    """The absolute path, which cannot be mistaken for an address.

    Raises:
        ValueError: it is empty or too long for a socket.
    """
    path = os.path.abspath(text)
    if not text or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{text!r} is not a socket path of at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path
