"""The command line options of all sidecars."""

import argparse
import os
from dataclasses import dataclass, field
from typing import Final

from shardwright.daemon.audit.log import AuditLog, add_audit_options, opened_audit_log
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.option_values import argument, parse_host_and_port
from shardwright.daemon.options import known_address
from shardwright.wire.host_and_port import HostAndPort

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sockaddr_un`` holds 108 bytes, including the terminating null."""


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """The options that the sidecars have in common.

    Attributes:
        address: ``host:port`` at which clients reach the daemon.
        mongod_socket: path of the UNIX socket of its mongod.
        mongod_address: its mongod in the replica set's configuration: ``host:port``, or the path of a UNIX socket.
        slow_ms: operations that take longer are logged.
        audit: the audit log; None if nothing is audited.
        logs: the logs of this process.
    """

    address: str
    mongod_socket: str
    mongod_address: str
    slow_ms: int
    audit: AuditLog | None = None
    logs: DaemonLogs = field(default_factory=DaemonLogs)

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "SidecarOptions":
        """The options from the parsed command line, and the audit log that it asks for."""
        logs = DaemonLogs(None if audit is None else audit.file)
        return cls(known_address(parsed), parsed.mongod_socket, parsed.mongod_address, parsed.slow_ms, audit, logs)


def add_sidecar_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--mongod-socket``, ``--mongod-tls`` and ``--mongod-address``, and the options of the audit log."""
    add_audit_options(parser)
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
        type=argument(_parse_member),
        metavar="HOST:PORT|SOCKET",
        help="the mongod's address in the configuration of its replica set",
    )


def check_advertised(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Refuse to register loopback with members that may be on other machines.

    MongoDB's rule for the addresses of a set is the same: all of them are loopback, or none.

    Raises:
        SystemExit: the daemon's address is loopback, and its mongod's is not.
    """
    address = known_address(parsed)
    is_elsewhere = "/" not in parsed.mongod_address and not HostAndPort.parse(parsed.mongod_address).is_localhost
    if is_elsewhere and HostAndPort.parse(address).is_localhost:
        parser.error(
            f"other machines cannot reach this daemon at {address}, as they reach its mongod at "
            f"{parsed.mongod_address}: give --bind-ip another address than loopback, or --advertise HOST[:PORT]"
        )


def secured_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """The sockets at which the mongod asks for TLS."""
    return (parsed.mongod_socket,) if parsed.mongod_tls else ()


def opened_sidecar_audit_log(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> AuditLog | None:
    """As `opened_audit_log`; refused without access control, where users cannot be told from routers.

    Raises:
        SystemExit: as `opened_audit_log`.
    """
    if parsed.audit_destination is not None and parsed.key_file is None and parsed.cluster_auth_mode is None:
        parser.error(
            "--audit-destination needs access control (--key-file or --cluster-auth-mode), without which this daemon "
            "cannot tell users from routers; routers have an audit log of their own"
        )
    return opened_audit_log(parser, parsed)


def _parse_member(text: str) -> str:
    """The address of a member as a mongod writes it: what has a slash is the path of a UNIX socket.

    Raises:
        ValueError: it is neither such a path nor ``host:port``.
    """
    return text if "/" in text else str(parse_host_and_port(text))


def _parse_socket_path(text: str) -> str:
    """The absolute path, which cannot be mistaken for an address.

    Raises:
        ValueError: it is empty or too long for a socket.
    """
    path = os.path.abspath(text)
    if not text or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{text!r} is not a socket path of at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path
