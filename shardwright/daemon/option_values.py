"""The text formats of the values of options and server parameters, and the meaning of addresses among them.

Each parser raises ValueError, with a message for the user, for any other text.
"""

import argparse
import json
import math
import os
import re
import socket
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from bson import json_util

from shardwright.daemon.document_filter import Predicate, parse_filter
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import PORT_MAX, ConnectionString, HostAndPort
from shardwright.wire.tls import PROTOCOLS

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sockaddr_un`` holds 108 bytes, including the terminating null."""

_HOST_NAME_MAX: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)

_NUMBER_MAX: Final = 1_000_000_000
"""The limit of numbers in options, so that calculations of bytes or times cannot overflow."""


def parse_host_and_port(text: str, *, default_port: int | None = None) -> HostAndPort:
    """Parse ``host:port`` or ``[ipv6]:port``.

    Args:
        default_port: see `HostAndPort.parse`.
    """
    try:
        parsed = HostAndPort.parse(text, default_port=default_port)
    except CommandError as error:
        raise ValueError(f"{text!r}: {error.message}") from error
    _check_host_name(parsed, text)
    return parsed


def parse_advertised(text: str) -> HostAndPort:
    """Parse ``host`` or ``host:port``; the port is 0 if there is none. Wildcard addresses are refused."""
    parsed = parse_host_and_port(text, default_port=0)
    if parsed.host in ("0.0.0.0", "::"):
        raise ValueError(f"{text!r} is not an address that others can reach")
    return parsed


def parse_replica_set(text: str, *, default_port: int | None = None) -> ConnectionString:
    """Parse ``set/host:port,host:port``.

    Args:
        default_port: see `HostAndPort.parse`.
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


def parse_host_name(text: str) -> str:
    """Parse the name of a host in DNS, which is also safe as the name of a file and in a shell."""
    labels = text.split(".")
    if len(text) > _HOST_NAME_MAX or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError(
            f"{text!r} is not a host name of letters, digits, - and dots (write an international name as xn--…)"
        )
    return text


def parse_port(text: str, *, port_min: int = 0) -> int:
    """Parse a TCP port from ``port_min`` to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5) or not port_min <= int(text) <= PORT_MAX:
        raise ValueError(f"{text!r} is not a port from {port_min} to {PORT_MAX}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a time in seconds, above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is not a number of seconds")
    if seconds > _NUMBER_MAX:
        raise ValueError(f"more than {_NUMBER_MAX} seconds")
    return seconds


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse addresses to listen on, separated by commas, IPv6 with or without brackets."""
    return tuple(_parse_address(address.strip(), text) for address in text.split(","))


def _parse_address(address: str, text: str) -> str:
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address or any(character in "[]/" or character.isspace() for character in address):
        raise ValueError(f"{text!r} is not a list of addresses such as 127.0.0.1,[::1]")
    return address


def parse_count(text: str) -> int:
    """Parse a whole number above 0."""
    number = _digits(text)
    if not number:
        raise ValueError(f"{text!r} is not a number of at least 1")
    return number


def parse_milliseconds(text: str) -> int:
    """Parse a time in whole milliseconds."""
    number = _digits(text)
    if number is None:
        raise ValueError(f"{text!r} is not a number of milliseconds")
    return number


def parse_number(text: str) -> int:
    """Parse a whole number that may be 0."""
    number = _digits(text)
    if number is None:
        raise ValueError(f"{text!r} is not a whole number")
    return number


def _digits(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text.lstrip("0")) >= len(str(_NUMBER_MAX)):
        raise ValueError(f"not below {_NUMBER_MAX}")
    return int(text)


def parse_member(text: str) -> str:
    """Parse the address of a replica set member: ``host:port``, or the path of a UNIX socket, which has a slash."""
    return text if "/" in text else str(parse_host_and_port(text))


def parse_socket_path(text: str) -> str:
    """Parse the path of a UNIX socket; the result is absolute, so that it cannot be mistaken for an address."""
    path = os.path.abspath(text)
    if not text or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{text!r} is not a socket path of at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path


def parse_protocols(text: str) -> frozenset[str]:
    """Parse MongoDB's names of TLS versions, separated by commas; ``none`` means no version."""
    names = frozenset(text.split(",")) - {"none"}
    for name in names.difference(PROTOCOLS):
        raise ValueError(f"Unrecognized disabledProtocols '{name}'")
    return names


def parse_json_filter(text: str) -> Predicate:
    """Parse a filter in MongoDB's query language, written as extended JSON; errors also as `parse_filter`."""
    try:
        query = json_util.loads(text)
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"the audit filter is not JSON: {error}") from error
    if not isinstance(query, dict):
        raise ValueError("the audit filter is not a document")
    return parse_filter(query)


def parse_number_up_to(maximum: int, text: str) -> int:
    """Parse a whole number from 1 to ``maximum``."""
    number = _digits(text)
    if not number or number > maximum:
        raise ValueError(f"{text!r} is not a number from 1 to {maximum}")
    return number


def parse_url(text: str) -> str:
    """Parse an HTTP URL."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not of the form http://HOST:PORT or https://HOST:PORT")
    return text


def parse_ratio(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= 1:
        raise ValueError(f"{text!r} is not a number from 0 to 1")
    return ratio


def parse_pair(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def check_exposure(parsed: argparse.Namespace) -> None:
    """Refuse to listen on the network without access control, unless ``--noauth`` is given.

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
    """Return the ``host:port`` at which other processes reach the daemon.

    Without ``--advertise`` it is the first address to listen on that is not loopback, else loopback. If the daemon
    listens on all addresses, it is the machine's host name.
    """
    if parsed.advertise is not None:
        return str(HostAndPort(parsed.advertise.host, parsed.advertise.port or parsed.port))
    first = next((each for each in parsed.bind_ip if not _is_loopback(each)), parsed.bind_ip[0])
    host = socket.gethostname() if first in ("0.0.0.0", "::") else first
    return str(HostAndPort(host, parsed.port))


def parse_boolean(text: str) -> bool:
    """Parse a parameter that is on or off; ValueError, with a message for the user, for anything else."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return found
