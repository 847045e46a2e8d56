"""The command line options that all daemons have."""

import argparse
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from shardwright.daemon.limit_options import add_newcomer_options, add_timeout_options, add_unread_options
from shardwright.daemon.log_file import LogRotation
from shardwright.daemon.logs import LEVELS
from shardwright.daemon.option_values import (
    argument,
    parse_addresses,
    parse_advertised,
    parse_count,
    parse_milliseconds,
    parse_port,
)
from shardwright.daemon.parameter_text import parse_boolean
from shardwright.daemon.tls_options import add_tls_options
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.transport.arrivals import HANDSHAKES_MAX, HANDSHAKES_MIN
from shardwright.wire.transport.cluster_auth_mode import ClusterAuthMode

SLOW_MS: Final = 100
"""MongoDB's ``slowOpThresholdMs``."""


def add_daemon_options(parser: argparse.ArgumentParser, *, default_port: int) -> None:
    """Add ``--bind-ip``, ``--port``, ``--unix-socket-directory``, ``--max-connections`` and the options for logs."""
    parser.add_argument(
        "--bind-ip",
        type=argument(parse_addresses),
        default=("127.0.0.1",),
        metavar="ADDRESSES",
        help="addresses to listen on, separated by commas; IPv6 with or without brackets (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port", type=argument(parse_port), default=default_port, help="port for clients (default: %(default)s)"
    )
    parser.add_argument(
        "--advertise",
        type=argument(parse_advertised),
        metavar="HOST[:PORT]",
        help="address at which the rest of the cluster and clients reach this process (default: the first address of "
        "--bind-ip that is not loopback, or the machine's host name for 0.0.0.0 and ::, with --port)",
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
        type=argument(parse_count),
        metavar="N",
        help="maximum number of clients; more are refused (default: as many as the limit on open files allows)",
    )
    parser.add_argument(
        "--handshakes-max",
        type=argument(parse_count),
        metavar="N",
        help="with TLS: how many connections may be in their handshake; the oldest makes room for a new one "
        f"(default: a quarter of --max-connections, from {HANDSHAKES_MIN} to {HANDSHAKES_MAX})",
    )
    parser.add_argument(
        "--metrics-port",
        type=argument(parse_port),
        metavar="PORT",
        help="port for /metrics, /healthz and /readyz over HTTP, 0 for any free one (default: none)",
    )
    parser.add_argument(
        "--metrics-bind-ip",
        type=argument(parse_addresses),
        default=("127.0.0.1",),
        metavar="ADDRESSES",
        help="addresses to serve these on, without TLS and to anybody (default: 127.0.0.1)",
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
        "--redact-client-log-data",
        nargs="?",
        const=True,
        default=False,
        type=argument(parse_boolean),
        metavar="true|false",
        help="write no data of clients into the log (default: false)",
    )
    parser.add_argument(
        "--slow-ms",
        type=argument(parse_milliseconds),
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


def known_address(parsed: argparse.Namespace) -> str:
    """``host:port`` at which others reach the daemon, as the options say or imply.

    Without ``--advertise``: the first address to listen on that is not loopback, else loopback. If the daemon listens
    on all addresses, the machine's host name.
    """
    if parsed.advertise is not None:
        return str(HostAndPort(parsed.advertise.host, parsed.advertise.port or parsed.port))
    first = next((each for each in parsed.bind_ip if not _is_loopback(each)), parsed.bind_ip[0])
    host = socket.gethostname() if first in ("0.0.0.0", "::") else first
    return str(HostAndPort(host, parsed.port))


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
