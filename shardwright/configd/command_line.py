"""``shardwright-configd``: the daemon in front of one mongod of the config servers."""

from collections.abc import Sequence
from functools import partial

from shardwright.configd.service import ConfigService
from shardwright.daemon.audit.log import opened_audit_log
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import CONFIGD
from shardwright.daemon.run import run_daemon
from shardwright.daemon.sidecar.options import SidecarOptions, check_sidecar_options, secured_sockets


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a config daemon until it receives a signal to shut down; returns the exit code."""
    found = process_configuration(CONFIGD, arguments, check=check_sidecar_options)
    options = SidecarOptions.of(found.values, opened_audit_log(CONFIGD.name, found.values))
    return run_daemon(
        CONFIGD.name,
        found.values,
        partial(ConfigService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_sidecar_options),
        secured_sockets=secured_sockets(found.values),
        on_log_signal=options.logs.rotate,
    )
