"""``shardwright-router``: the options, and one process or several that share the port."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from shardwright.daemon.audit.log import check_audit, opened_audit_log
from shardwright.daemon.configuration.configuration import Configuration
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.shown import nested_options
from shardwright.daemon.configuration.table import ROUTER
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.options import known_address
from shardwright.daemon.run import run_daemon
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.parameters import parse_parameter
from shardwright.router.processes.workers import WORKER_OPTIONS, run_workers, worker_sockets
from shardwright.router.service import RouterService


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a router until it receives a signal to stop; returns the exit code."""
    found = process_configuration(
        ROUTER, arguments, check=check_audit, parse_parameter=parse_parameter, hidden=WORKER_OPTIONS
    )
    audit = opened_audit_log(ROUTER.name, found.values)
    logs = DaemonLogs(None if audit is None else audit.file)
    if found.values.workers > 1 and found.values.worker_index is None:
        return run_workers(found, logs, check_audit)
    options = replace(_options(found), audit=audit, logs=logs)
    is_worker = found.values.worker_index is not None
    return run_daemon(
        ROUTER.name,
        found.values,
        partial(RouterService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_audit),
        is_main=not is_worker,
        reuse_port=found.values.workers > 1,
        unix_socket=options.worker_sockets[options.worker_index] if options.worker_sockets else None,
        # The process that started the workers rotates the logs that they share.
        on_log_signal=logs.reopen if is_worker else logs.rotate,
    )


def _options(found: Configuration) -> RouterOptions:
    values = found.values
    return RouterOptions(
        config_servers=values.configdb,
        address=known_address(values),
        arguments=(ROUTER.name, *found.words),
        given=nested_options(found),
        worker_index=values.worker_index or 0,
        worker_sockets=worker_sockets(values),
        supervisor=values.worker_supervisor,
        slow_ms=values.slow_ms,
        shutdown_seconds=values.shutdown_seconds,
        config_seconds=values.config_seconds,
        parameters=dict(values.parameters),
    )
