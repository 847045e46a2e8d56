"""The formats of values in command line options."""

import argparse
import math
from collections.abc import Callable
from typing import Final, TypeVar

from shardwright.wire.connection_string import ConnectionString
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import PORT_MAX, HostAndPort

Value = TypeVar("Value")

_NUMBER_MAX: Final = 1_000_000_000
"""The limit of numbers in options, so that calculations of bytes or times cannot overflow."""


def argument(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """``parse`` as an argparse ``type`` that shows the message of a ValueError to the user."""

    def parse_argument(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def parse_host_and_port(text: str, *, default_port: int | None = None) -> HostAndPort:
    """Parse ``host:port`` or ``[ipv6]:port``.

    Args:
        text: the option's value.
        default_port: see `HostAndPort.parse`.

    Raises:
        ValueError: anything else, with a message for the user.
    """
    try:
        parsed = HostAndPort.parse(text, default_port=default_port)
    except CommandError as error:
        raise ValueError(f"{text!r}: {error.message}") from error
    _check_host_name(parsed, text)
    return parsed


def parse_advertised(text: str) -> HostAndPort:
    """Parse ``host`` or ``host:port``; the port is 0 if there is none.

    Raises:
        ValueError: as `parse_host_and_port`; the host stands for all addresses.
    """
    parsed = parse_host_and_port(text, default_port=0)
    if parsed.host in ("0.0.0.0", "::"):
        raise ValueError(f"{text!r} is not an address that others can reach")
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


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse addresses to listen on, separated by commas, IPv6 with or without brackets.

    Raises:
        ValueError: one of them is empty or malformed.
    """
    return tuple(_parse_address(address.strip(), text) for address in text.split(","))


def _parse_address(address: str, text: str) -> str:
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address or any(character in "[]/" or character.isspace() for character in address):
        raise ValueError(f"{text!r} is not a list of addresses such as 127.0.0.1,[::1]")
    return address


def parse_count(text: str) -> int:
    """Parse a number of things.

    Raises:
        ValueError: it is not a whole number above 0, or it is far too large.
    """
    number = _parse_number(text)
    if not number:
        raise ValueError(f"{text!r} is not a number of at least 1")
    return number


def parse_milliseconds(text: str) -> int:
    """Parse a time in whole milliseconds.

    Raises:
        ValueError: it is not a whole number, or it is far too large.
    """
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
