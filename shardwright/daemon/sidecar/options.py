"""The options of all sidecars."""

import argparse
from dataclasses import dataclass, field

from shardwright.daemon.audit.log import AuditLog, check_audit
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.options import known_address
from shardwright.wire.host_and_port import HostAndPort


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """The options that the sidecars have in common.

    Attributes:
        address: ``host:port`` at which clients reach the daemon.
        mongod_address: its mongod in the replica set's configuration: ``host:port``, or the path of a UNIX socket.
        audit: the audit log; None if auditing is off.
    """

    address: str
    mongod_socket: str
    mongod_address: str
    slow_ms: int
    audit: AuditLog | None = None
    logs: DaemonLogs = field(default_factory=DaemonLogs)

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "SidecarOptions":
        """Read the options from the parsed command line and its audit log."""
        logs = DaemonLogs(None if audit is None else audit.file)
        return cls(known_address(parsed), parsed.mongod_socket, parsed.mongod_address, parsed.slow_ms, audit, logs)


def check_sidecar_options(parsed: argparse.Namespace) -> None:
    """Refuse options that do not fit together.

    A daemon on loopback must not register with members that may be on other machines. MongoDB's rule for the addresses
    of a set is the same: all of them are loopback, or none. An audit log needs access control, because without it users
    cannot be distinguished from routers.

    Raises:
        ValueError: they do not, with a message for the operator.
    """
    address = known_address(parsed)
    is_elsewhere = "/" not in parsed.mongod_address and not HostAndPort.parse(parsed.mongod_address).is_localhost
    if is_elsewhere and HostAndPort.parse(address).is_localhost:
        raise ValueError(
            f"other machines cannot reach this daemon at {address}, as they reach its mongod at "
            f"{parsed.mongod_address}: give --bind-ip another address than loopback, or --advertise HOST[:PORT]"
        )
    if parsed.audit_destination is not None and parsed.key_file is None and parsed.cluster_auth_mode is None:
        raise ValueError(
            "--audit-destination needs access control (--key-file or --cluster-auth-mode), without which this daemon "
            "cannot tell users from routers; routers have an audit log of their own"
        )
    check_audit(parsed)


def secured_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """Return the mongod's sockets that require TLS."""
    return (parsed.mongod_socket,) if parsed.mongod_tls else ()
