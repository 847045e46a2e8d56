"""How the sidecar of a mongod was started."""

import argparse
import os
from dataclasses import dataclass
from typing import Final

from shardwright.daemon.options import argument, known_address, parse_host_and_port

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sockaddr_un`` holds 108 bytes, the last one being the terminating null."""


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
    parser.add_argument(
        "--mongod-socket",
        required=True,
        type=argument(_parse_socket_path),
        metavar="PATH",
        help="the UNIX socket of the mongod",
    )
    parser.add_argument(
        "--mongod-address",
        required=True,
        type=argument(parse_host_and_port),
        metavar="HOST:PORT",
        help="the mongod as the configuration of its replica set names it",
    )


def _parse_socket_path(text: str) -> str:
    """The absolute path, which cannot be mistaken for an address.

    Raises:
        ValueError: there is no path, or none that a socket can have.
    """
    path = os.path.abspath(text)
    if not text or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{text!r} is no path of a socket, which has at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path
