"""``shardwright-router``: options, and one process or several that share the port."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from shardwright.config_servers.catalog_client import READ_SECONDS_MAX
from shardwright.daemon.audit.log import add_audit_options, opened_audit_log
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.option_values import argument, parse_replica_set, parse_seconds
from shardwright.daemon.options import add_daemon_options, add_parameter_option, known_address
from shardwright.daemon.run import run_daemon
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.parameters import parse_parameter
from shardwright.router.processes.workers import add_worker_options, run_workers, worker_sockets
from shardwright.router.service import RouterService

NAME = "shardwright-router"
DEFAULT_PORT = 27017
CONFIG_SERVER_PORT = 27019


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a router until it is asked to stop; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argument_parser()
    parsed = parser.parse_args(given)
    audit = opened_audit_log(parser, parsed)
    logs = DaemonLogs(None if audit is None else audit.file)
    if parsed.workers > 1 and parsed.worker_index is None:
        return run_workers(parsed, given, logs)
    options = RouterOptions(
        config_servers=parsed.configdb,
        address=known_address(parsed),
        arguments=(NAME, *given),
        worker_index=parsed.worker_index or 0,
        worker_sockets=worker_sockets(parsed),
        supervisor=parsed.worker_supervisor,
        slow_ms=parsed.slow_ms,
        shutdown_seconds=parsed.shutdown_seconds,
        config_seconds=parsed.config_seconds,
        parameters=dict(parsed.parameters),
        audit=audit,
        logs=logs,
    )
    is_worker = parsed.worker_index is not None
    return run_daemon(
        NAME,
        parsed,
        partial(RouterService.start, options),
        reuse_port=parsed.workers > 1,
        unix_socket=options.worker_sockets[options.worker_index] if options.worker_sockets else None,
        # The process that started the workers rotates the logs that they share.
        on_log_signal=logs.reopen if is_worker else logs.rotate,
    )


def argument_parser() -> argparse.ArgumentParser:
    """The command line, as argparse reads it."""
    parser = argparse.ArgumentParser(prog=NAME, description="The router of a sharded cluster: what clients connect to.")
    add_daemon_options(parser, default_port=DEFAULT_PORT)
    parser.add_argument(
        "--configdb",
        required=True,
        type=argument(partial(parse_replica_set, default_port=CONFIG_SERVER_PORT)),
        metavar="SET/HOST:PORT,…",
        help="the replica set of the config servers",
    )
    parser.add_argument(
        "--config-seconds",
        type=argument(parse_seconds),
        default=READ_SECONDS_MAX,
        metavar="SECONDS",
        help="how long the config servers have to answer a read of the catalog (default: %(default)g)",
    )
    add_parameter_option(parser, parse_parameter, "start with this server parameter, for example enableTestCommands=1")
    add_audit_options(parser)
    add_worker_options(parser)
    return parser
