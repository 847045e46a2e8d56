"""The command line options that all daemons have, and the formats of addresses in them."""

import argparse
import math
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeVar

from shardwright.daemon.log_file import LogRotation
from shardwright.daemon.logs import LEVELS
from shardwright.daemon.tls_options import add_tls_options
from shardwright.wire.connection_string import ConnectionString
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import PORT_MAX, HostAndPort
from shardwright.wire.transport.cluster_auth_mode import ClusterAuthMode
from shardwright.wire.transport.newcomers import NewcomerLimits
from shardwright.wire.transport.timeouts import TIMEOUTS
from shardwright.wire.transport.unread_total import UnreadBounds

Value = TypeVar("Value")

_NUMBER_MAX: Final = 1_000_000_000
"""The limit of numbers in options, so that calculations of bytes or times cannot overflow."""

SLOW_MS: Final = 100
"""MongoDB's ``slowOpThresholdMs``."""


def parse_host_and_port(text: str) -> HostAndPort:
    """Parse ``host:port`` or ``[ipv6]:port``.

    Raises:
        ValueError: anything else, with a message for the user.
    """
    try:
        parsed = HostAndPort.parse(text, default_port=None)
    except CommandError as error:
        raise ValueError(f"{text!r}: {error.message}") from error
    _check_host_name(parsed, text)
    return parsed


def parse_replica_set(text: str, *, default_port: int | None = None) -> ConnectionString:
    """Parse ``set/host:port,host:port``.

    Args:
        text: the option's value.
        default_port: see `HostAndPort.parse`.

    Raises:
        ValueError: anything else, with a message for the user.
    """
    try:
        parsed = ConnectionString.parse(text, default_port=default_port)
    except CommandError as error:
        raise ValueError(f"{text!r}: {error.message}") from error
    if not parsed.set_name:
        raise ValueError(f"{text!r} is not of the form set/host:port,host:port")
    for host in parsed.hosts:
        _check_host_name(host, text)
    if len(set(parsed.hosts)) != len(parsed.hosts):
        raise ValueError(f"{text!r} names a host twice")
    return parsed


def _check_host_name(parsed: HostAndPort, text: str) -> None:
    """Refuse names that mongod would accept, but that no host can have."""
    if any(character.isspace() or character in "/,[" for character in parsed.host):
        raise ValueError(f"{text!r} has no valid host name")


def parse_port(text: str, *, port_min: int = 0) -> int:
    """Parse a TCP port.

    Raises:
        ValueError: not a number from ``port_min`` to 65535.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 5) or not port_min <= int(text) <= PORT_MAX:
        raise ValueError(f"{text!r} is not a port from {port_min} to {PORT_MAX}")
    return int(text)


def add_daemon_options(parser: argparse.ArgumentParser, *, default_port: int) -> None:
    """Add ``--bind-ip``, ``--port``, ``--unix-socket-directory``, ``--max-connections`` and the options for logs."""
    parser.add_argument(
        "--bind-ip",
        type=argument(_parse_addresses),
        default=("127.0.0.1",),
        metavar="ADDRESSES",
        help="addresses to listen on, separated by commas; IPv6 with or without brackets (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port", type=argument(parse_port), default=default_port, help="port for clients (default: %(default)s)"
    )
    parser.add_argument(
        "--unix-socket-directory",
        type=Path,
        metavar="PATH",
        help="directory of UNIX sockets through which daemons on this machine reach each other (default: TCP only)",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="PATH",
        help="the key of the cluster, which turns access control on; only its owner may read it (default: none)",
    )
    parser.add_argument(
        "--cluster-auth-mode",
        type=ClusterAuthMode,
        choices=tuple(ClusterAuthMode),
        metavar="MODE",
        help="how the processes of the cluster recognise each other: by the key (keyFile), by certificates (x509), or, "
        "while that changes, by both (sendKeyFile, then sendX509) (default: keyFile, if there is a key file)",
    )
    parser.add_argument(
        "--noauth",
        action="store_true",
        help="listen on other addresses than loopback even without a key: anyone who reaches them may do anything",
    )
    add_tls_options(parser)
    parser.add_argument(
        "--max-connections",
        type=argument(_parse_count),
        metavar="N",
        help="maximum number of clients; more are refused (default: as many as the limit on open files allows)",
    )
    parser.add_argument(
        "--metrics-port",
        type=argument(parse_port),
        metavar="PORT",
        help="port for /metrics, /healthz and /readyz over HTTP, 0 for any free one (default: none)",
    )
    add_unread_options(parser)
    add_timeout_options(parser)
    add_newcomer_options(parser)
    parser.add_argument("--log-level", choices=tuple(LEVELS), default="info", help="(default: %(default)s)")
    parser.add_argument(
        "--log-file", type=Path, metavar="PATH", help="append the log to this file (default: standard error)"
    )
    parser.add_argument(
        "--log-rotate",
        type=LogRotation,
        choices=tuple(LogRotation),
        default=LogRotation.RENAME,
        help="what logRotate and SIGUSR1 do with the log file (default: %(default)s)",
    )
    parser.add_argument(
        "--redact-client-log-data", action="store_true", help="write no data of clients into the log (default: off)"
    )
    parser.add_argument(
        "--slow-ms",
        type=argument(_parse_milliseconds),
        default=SLOW_MS,
        metavar="MILLISECONDS",
        help="log operations that take longer than this (default: %(default)s)",
    )


def check_exposure(parsed: argparse.Namespace) -> None:
    """Refuse to be open to the network without access control, unless that is asked for by name.

    Raises:
        ValueError: an address is not of this machine alone, and there is neither a key nor ``--noauth``.
    """
    if parsed.key_file is not None or parsed.cluster_auth_mode is not None or parsed.noauth:
        return
    for address in parsed.bind_ip:
        if not _is_loopback(address):
            raise ValueError(f"will not listen on {address} without access control: give --key-file, or --noauth")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def add_timeout_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.timeouts`, and the one for shutdown."""
    parser.add_argument(
        "--shutdown-seconds",
        type=argument(parse_seconds),
        metavar="SECONDS",
        help="how long operations may continue after the signal to shut down (default: 15 for a router, else 5)",
    )
    parser.add_argument(
        "--hello-seconds",
        type=argument(parse_seconds),
        default=TIMEOUTS.hello_seconds,
        metavar="SECONDS",
        help="how long a host may be silent before it is considered down (default: %(default)g)",
    )
    parser.add_argument(
        "--selection-seconds",
        type=argument(parse_seconds),
        default=TIMEOUTS.selection_seconds,
        metavar="SECONDS",
        help="how long operations wait for a suitable replica set member (default: %(default)g)",
    )


def use_timeouts(parsed: argparse.Namespace) -> None:
    """Apply the limits in the options to this process."""
    TIMEOUTS.hello_seconds, TIMEOUTS.selection_seconds = parsed.hello_seconds, parsed.selection_seconds


def parse_seconds(text: str) -> float:
    """Parse a time in seconds.

    Raises:
        ValueError: it is not a number above 0, or it is far too large.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is not a number of seconds")
    if seconds > _NUMBER_MAX:
        raise ValueError(f"more than {_NUMBER_MAX} seconds")
    return seconds


def add_unread_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.unread`."""
    default = UnreadBounds()
    parser.add_argument(
        "--unread-reply-mb",
        type=argument(_parse_count),
        default=default.total_bytes >> 20,
        metavar="MB",
        help="memory for replies that clients have not read (default: %(default)s)",
    )
    parser.add_argument(
        "--unread-reply-mb-per-client",
        type=argument(_parse_count),
        default=default.client_bytes >> 20,
        metavar="MB",
        help="the same for one client that reads nothing at all (default: %(default)s)",
    )
    parser.add_argument(
        "--unread-reply-seconds",
        type=argument(_parse_count),
        default=int(default.patience_seconds),
        metavar="SECONDS",
        help="how long such a client may read nothing (default: %(default)s)",
    )


def unread_bounds(parsed: argparse.Namespace) -> UnreadBounds:
    """The limits in the options."""
    return UnreadBounds(
        parsed.unread_reply_mb << 20, parsed.unread_reply_mb_per_client << 20, float(parsed.unread_reply_seconds)
    )


def add_newcomer_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.newcomers`."""
    default = NewcomerLimits()
    parser.add_argument(
        "--log-in-seconds",
        type=argument(parse_seconds),
        default=default.log_in_seconds,
        metavar="SECONDS",
        help="with a key file: how long a client may take for its first request, and to log in (default: %(default)g)",
    )
    parser.add_argument(
        "--idle-seconds-before-log-in",
        type=argument(parse_seconds),
        default=default.idle_seconds,
        metavar="SECONDS",
        help="with a key file: how long a client that does not log in, such as a monitor of a driver, may be silent "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--message-bytes-before-log-in",
        type=argument(_parse_count),
        default=default.message_bytes,
        metavar="BYTES",
        help="with a key file: the longest message of a client that has not logged in (default: %(default)s)",
    )
    parser.add_argument(
        "--failed-log-ins",
        type=argument(_parse_count),
        default=default.failures,
        metavar="N",
        help="with a key file: a connection is closed with its Nth failed log-in (default: %(default)s)",
    )


def newcomer_limits(parsed: argparse.Namespace) -> NewcomerLimits:
    """The limits in the options."""
    return NewcomerLimits(
        parsed.log_in_seconds,
        parsed.idle_seconds_before_log_in,
        parsed.message_bytes_before_log_in,
        parsed.failed_log_ins,
    )


def known_address(parsed: argparse.Namespace) -> str:
    """``host:port`` at which others reach the daemon: with the machine's host name if it listens on all addresses."""
    first = parsed.bind_ip[0]
    host = socket.gethostname() if first in ("0.0.0.0", "::") else first
    return str(HostAndPort(host, parsed.port))


def argument(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """``parse`` as an argparse ``type`` that shows the message of a ValueError to the user."""

    def parse_argument(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(_parse_address(address.strip(), text) for address in text.split(","))


def _parse_address(address: str, text: str) -> str:
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address or any(character in "[]/" or character.isspace() for character in address):
        raise ValueError(f"{text!r} is not a list of addresses such as 127.0.0.1,[::1]")
    return address


def _parse_count(text: str) -> int:
    number = _parse_number(text)
    if not number:
        raise ValueError(f"{text!r} is not a number of at least 1")
    return number


def _parse_milliseconds(text: str) -> int:
    number = _parse_number(text)
    if number is None:
        raise ValueError(f"{text!r} is not a number of milliseconds")
    return number


def _parse_number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text.lstrip("0")) >= len(str(_NUMBER_MAX)):
        raise ValueError(f"not below {_NUMBER_MAX}")
    return int(text)


def add_parameter_option(
    parser: argparse.ArgumentParser, parse: Callable[[str], tuple[str, object]], description: str
) -> None:
    """Add ``--set-parameter``, which may be given several times; ``parameters`` has the pairs of names and values.

    Args:
        parser: of a daemon that has server parameters.
        parse: the name and the value in ``NAME=VALUE``; raises ValueError with a message for the user.
        description: the option's help.
    """
    parser.add_argument(
        "--set-parameter",
        dest="parameters",
        type=argument(parse),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=description,
    )
