"""Consequences of the options of all daemons: the known address, and whether it is safe."""

import argparse
import socket
from ipaddress import ip_address

from shardwright.wire.host_and_port import HostAndPort


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
