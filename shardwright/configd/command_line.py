"""``shardwright-configd``: the daemon in front of one mongod of the config servers."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Final

from shardwright.configd.service import ConfigService
from shardwright.daemon.options import add_daemon_options
from shardwright.daemon.run import run_daemon
from shardwright.daemon.sidecar.options import (
    SidecarOptions,
    add_sidecar_options,
    check_advertised,
    opened_sidecar_audit_log,
    secured_sockets,
)

DEFAULT_PORT: Final = 27019


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a config daemon until it is asked to shut down; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="shardwright-configd",
        description="The daemon of the config servers, one in front of each of their mongods.",
    )
    add_daemon_options(parser, default_port=DEFAULT_PORT)
    add_sidecar_options(parser)
    parsed = parser.parse_args(arguments)
    check_advertised(parser, parsed)
    options = SidecarOptions.of(parsed, opened_sidecar_audit_log(parser, parsed))
    return run_daemon(
        parser.prog,
        parsed,
        partial(ConfigService.start, options),
        secured_sockets=secured_sockets(parsed),
        on_log_signal=options.logs.rotate,
    )
