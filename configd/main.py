"""``shardwright-configd``: the daemon in front of one mongod of the config servers."""

import argparse
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from configd.options import ConfigOptions
from configd.service import ConfigService
from daemon.options import add_daemon_options, argument, parse_host_and_port
from daemon.run import run_daemon

DEFAULT_PORT: Final = 27019


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a config daemon until it is told to end; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    options = ConfigOptions(
        address=_address(parsed),
        mongod_socket=parsed.mongod_socket,
        mongod_address=str(parsed.mongod_address),
        slow_ms=parsed.slow_ms,
    )
    return run_daemon("shardwright-configd", parsed, partial(ConfigService.start, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardwright-configd",
        description="The daemon of the config servers, one in front of each of their mongods.",
    )
    add_daemon_options(parser, default_port=DEFAULT_PORT)
    parser.add_argument("--mongod-socket", required=True, metavar="PATH", help="the UNIX socket of the mongod")
    parser.add_argument(
        "--mongod-address",
        required=True,
        type=argument(parse_host_and_port),
        metavar="HOST:PORT",
        help="the mongod as the configuration of its replica set names it",
    )
    return parser


def _address(parsed: argparse.Namespace) -> str:
    """The name under which clients reach this daemon: the host's own when it listens on all addresses."""
    first = parsed.bind_ip.split(",")[0]
    host = socket.gethostname() if first in ("0.0.0.0", "::") else first
    return f"{host}:{parsed.port}"


if __name__ == "__main__":
    sys.exit(main())
