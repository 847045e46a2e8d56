"""``shardwright-shardd``: the daemon in front of one mongod of a shard."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Final

from shardwright.daemon.options import add_daemon_options
from shardwright.daemon.run import run_daemon
from shardwright.daemon.sidecar.options import check_advertised, opened_sidecar_audit_log, secured_sockets
from shardwright.shardd.options import ShardOptions, add_shard_options
from shardwright.shardd.service import ShardService

DEFAULT_PORT: Final = 27018


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a shard daemon until it is asked to stop; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="shardwright-shardd", description="The shard daemon, which runs in front of each mongod of a shard."
    )
    add_daemon_options(parser, default_port=DEFAULT_PORT)
    add_shard_options(parser)
    parsed = parser.parse_args(arguments)
    check_advertised(parser, parsed)
    options = ShardOptions.of(parsed, opened_sidecar_audit_log(parser, parsed))
    return run_daemon(
        parser.prog,
        parsed,
        partial(ShardService.start, options),
        secured_sockets=secured_sockets(parsed),
        on_log_signal=options.logs.rotate,
    )
