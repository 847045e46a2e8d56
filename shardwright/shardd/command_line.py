"""``shardwright-shardd``: the daemon in front of one mongod of a shard."""

from collections.abc import Sequence
from functools import partial

from shardwright.daemon.audit.log import opened_audit_log
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import SHARDD
from shardwright.daemon.run import run_daemon
from shardwright.daemon.sidecar.options import check_sidecar_options, secured_sockets
from shardwright.shardd.commands.server_parameters import parse_parameter
from shardwright.shardd.options import ShardOptions
from shardwright.shardd.service import ShardService


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a shard daemon until a signal or command stops it; return the exit code."""
    found = process_configuration(SHARDD, arguments, check=check_sidecar_options, parse_parameter=parse_parameter)
    options = ShardOptions.of(found.values, opened_audit_log(SHARDD.name, found.values))
    return run_daemon(
        SHARDD.name,
        found.values,
        partial(ShardService.start, options),
        introduction=introduction(found),
        read_again=None if found.file is None else Rereading(found, check_sidecar_options),
        secured_sockets=secured_sockets(found.values),
        on_log_signal=options.logs.rotate,
    )
