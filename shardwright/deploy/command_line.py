"""The command line of ``shardwright``."""

import argparse
import signal
from pathlib import Path

from shardwright.console.cli import add_console_options, add_explain_options, add_lint_options
from shardwright.deploy import command_parser
from shardwright.deploy.access import MODES
from shardwright.deploy.balancing import BALANCER_ACTIONS
from shardwright.deploy.certs import add_options as add_certs_options
from shardwright.deploy.cluster_state import DAEMONS, DEFAULT_CACHE_GB, ORPHAN_CLEANUP_DELAY, VERIFY_MIGRATIONS
from shardwright.deploy.command_parser import SHELLS, SuggestingParser, version_text
from shardwright.deploy.joining import add_options as add_joining_options
from shardwright.deploy.layout import DEFAULT_DIRECTORY
from shardwright.deploy.planned_files import add_options as add_plan_options
from shardwright.deploy.up import DEFAULT_PORT, DEFAULT_START_TIMEOUT, MEMBERS_MAX, ROUTERS_MAX, SHARDS_MAX, WORKERS_MAX
from shardwright.deploy.upgrade import add_options as add_upgrade_options
from shardwright.mongosh_compat.jstests.command import add_options as add_jstest_options
from shardwright.sync.cli import add_options as add_sync_options


def argument_parser() -> SuggestingParser:
    """Build the parser of the command line. The parsed options have the command's name as ``command``."""
    parser = SuggestingParser(prog="shardwright", description="A sharded MongoDB cluster on this machine.")
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, description: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=description, description=description)
        subparser.add_argument(
            "--dir",
            type=Path,
            default=DEFAULT_DIRECTORY,
            help=f"directory of the cluster (default: {DEFAULT_DIRECTORY})",
        )
        return subparser

    _add_up_options(command("up", "Start a cluster, or restart the one in the directory."))

    status = command("status", "Show processes and migrations; the exit status is 1 if a process is not running.")
    status.add_argument("--json", action="store_true", help="print the JSON line of `up --json`, and migrations")

    command("down", "Stop the cluster and keep its data.")

    ps = command("ps", "Show the role, state, version, age and memory of each process.")
    ps.add_argument("--json", action="store_true", help="print one JSON line")

    logs = command("logs", "Print the end of the log of one process.")
    logs.add_argument("name", help="as `status` shows it, for example router.0")
    logs.add_argument("-f", "--follow", action="store_true", help="continue with new lines, until Ctrl-C")
    logs.add_argument("--lines", type=command_parser.count, default=100, metavar="N", help="(default: %(default)s)")

    connect = command("connect", "Open mongosh on the cluster, logged in as its first user.")
    connect.add_argument(
        "words", nargs="*", metavar="ARGUMENT", help="for mongosh, after --: for example -- --eval 'sh.status()'"
    )

    kill = command("kill", "Send a signal to one process.")
    kill.add_argument("name", help="as `status` shows it, for example shard0.0.mongod")
    kill.add_argument(
        "--signal", type=command_parser.signal_of, default=signal.SIGKILL, help="name or number (default: KILL)"
    )

    restart = command("restart", "Stop one process, start it again and wait until it is ready.")
    restart.add_argument("name", help="as `status` shows it, for example router.0")
    _add_timeout(restart)

    destroy = command("destroy", "Stop the cluster and delete its directory with all data.")
    destroy.add_argument("--yes", action="store_true", help="do not ask")

    rotate_key = command("rotate-key", "Give a running cluster with access control another key, one process at a time.")
    _add_timeout(rotate_key)

    cluster_auth_mode = command(
        "cluster-auth-mode",
        "Have the processes of a running cluster with --auth and --tls recognise each other by certificates instead "
        "of a key, without a restart.",
    )
    cluster_auth_mode.add_argument("mode", choices=MODES, help="the mode to go to; there is no way back")

    add_shard = command("add-shard", "Start another shard and add it to the running cluster.")
    add_shard.add_argument(
        "--members",
        type=command_parser.count,
        metavar="N",
        help="members of its replica set (default: as the other shards)",
    )
    _add_timeout(add_shard)

    remove_shard = command("remove-shard", "Drain a shard, remove it from the cluster and stop it.")
    remove_shard.add_argument("name", help="the shard, for example shard1")

    balancer = command("balancer", "Start or stop the balancer, or show its state and what it does next.")
    balancer.add_argument("action", nargs="?", choices=BALANCER_ACTIONS, default="status", help="(default: status)")
    balancer.add_argument("--explain", action="store_true", help="show the decisions of the next round, with reasons")
    balancer.add_argument("--json", action="store_true", help="print one JSON line")

    check = command("check", "Compare the catalog with the shards; the exit status is 2 if there is damage.")
    check.add_argument("--indexes", action="store_true", help="compare the indexes of the shards too")
    check.add_argument("--json", action="store_true", help="print one line of extended JSON")

    description = "Let all daemons use what is new in their release, once all of them have been upgraded."
    add_upgrade_options(commands.add_parser("finish-upgrade", help=description, description=description))

    doctor = command("doctor", "Find faults of a cluster; the exit status is 2 if there are any.")
    doctor.add_argument("--uri", help="connection string of routers (default: the cluster in the directory)")
    doctor.add_argument(
        "--key-file", type=Path, metavar="PATH", help="with --uri: the cluster's key, to log in at daemons"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON line")

    description = "Print a script with which a shell completes this command."
    completion = commands.add_parser("completion", help=description, description=description)
    completion.add_argument("shell", choices=SHELLS)

    monitor_config = command(
        "monitor-config",
        "Write the configuration of Prometheus and Grafana for the cluster, and print the files' paths.",
    )
    monitor_config.add_argument(
        "--out", type=Path, metavar="PATH", help="directory for them (default: monitoring in the cluster's directory)"
    )

    chunk_map = command("map", "Print the chunk map of a sharded collection.")
    chunk_map.add_argument("namespace", help="the collection, for example shop.orders")

    add_explain_options(command("explain", "Show which shards an operation goes to, and why, without running it."))
    add_lint_options(
        command("lint", "Predict the shards of captured operations; the exit status is 2 if too many scatter.")
    )

    top = command("top", "Show live rates and latencies by command and shard, until interrupted.")
    top.add_argument(
        "--interval",
        type=command_parser.amount,
        default=2.0,
        metavar="SECONDS",
        help="length of an interval (default: %(default)s)",
    )
    top.add_argument(
        "--times", type=command_parser.count, metavar="N", help="end after this many intervals (default: never)"
    )

    init_set = (
        "On a host with a mongod and its daemon running: initiate their replica set, and add a shard to the cluster."
    )
    join = "On a host with a mongod and its daemon running: add them to a replica set that exists."
    description = (
        "Write the files of all hosts of a cluster, or show what differs; the exit status is 1 if something does, and "
        "2 after an error."
    )
    add_plan_options(commands.add_parser("plan", help=description, description=description))

    add_joining_options(
        commands.add_parser("init-set", help=init_set, description=init_set),
        commands.add_parser("join", help=join, description=join),
    )

    description = "Create an authority and certificates for the hosts and users of a cluster on several machines."
    add_certs_options(commands.add_parser("certs", help=description, description=description))
    add_console_options(command("console", "Show the cluster in the browser, until interrupted."))

    description = "Run integration suites in the style of MongoDB's jstests, on clusters that are started for them."
    jstest = commands.add_parser("jstest", help=description, description=description)
    add_jstest_options(jstest)

    description = "Replicate a replica set or sharded cluster into another one, and follow its changes."
    add_sync_options(commands.add_parser("sync", help=description, description=description))
    return parser


def _add_up_options(up: argparse.ArgumentParser) -> None:
    _add_size(up)
    up.add_argument(
        "--port",
        type=command_parser.port,
        help=f"port of the first router, 0 for any free one (default: {DEFAULT_PORT})",
    )
    up.add_argument("--mongod", metavar="PATH", help="mongod to run (default: $SHARDWRIGHT_MONGOD, PATH, embedded)")
    up.add_argument(
        "--cache-gb",
        type=command_parser.amount,
        metavar="GIB",
        help=f"WiredTiger cache of each mongod (default: {DEFAULT_CACHE_GB})",
    )
    up.add_argument(
        "--log-rotate",
        choices=("rename", "reopen"),
        help="what logRotate and SIGUSR1 do with the log files; kept until changed (default: rename)",
    )
    _add_parameters(up)
    _add_daemon_options(up)
    up.add_argument(
        "--separate-sockets",
        action="store_true",
        help="give each daemon of a new cluster its own directory of UNIX sockets, so that daemons reach each other "
        "through TCP, or through proxies that a test puts there",
    )
    up.add_argument(
        "--auth",
        action="store_true",
        help="turn access control on for a new cluster: make a key file and a first user with role root",
    )
    up.add_argument(
        "--tls",
        action="store_true",
        help="use TLS for all connections of a new cluster: make an authority and certificates",
    )
    up.add_argument(
        "--cluster-auth-mode",
        choices=MODES,
        help="how the processes of a new cluster with --auth and --tls recognise each other: by a key, by certificates "
        "(x509), or by both while that changes (default: keyFile)",
    )
    up.add_argument(
        "--console-port",
        type=command_parser.port,
        metavar="PORT",
        help="serve the console on this port too, 0 for any free one (default: no console)",
    )
    up.add_argument("--detach", action="store_true", help="return and leave the cluster running")
    up.add_argument(
        "--json", action="store_true", help="print one JSON line on standard output, everything else on standard error"
    )
    _add_timeout(up)


def _add_size(parser: argparse.ArgumentParser) -> None:
    def add(option: str, what: str, default: int, maximum: int) -> None:
        parser.add_argument(option, type=int, metavar="N", help=f"{what} (default: {default}, at most {maximum})")

    add("--shards", "number of shards", 2, SHARDS_MAX)
    add("--members", "members of each shard's replica set", 1, MEMBERS_MAX)
    add("--config-members", "members of the config replica set", 1, MEMBERS_MAX)
    add("--routers", "number of routers", 1, ROUTERS_MAX)
    parser.add_argument(
        "--workers",
        type=command_parser.count,
        metavar="N",
        help=f"processes that share each router's port (default: 1, at most {WORKERS_MAX})",
    )


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=command_parser.amount,
        default=DEFAULT_START_TIMEOUT,
        metavar="SECONDS",
        help=f"give up starting after this long (default: {DEFAULT_START_TIMEOUT:.0f})",
    )


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add ``--set-parameter`` and the options for single parameters, all collected in ``parameters``."""
    parser.add_argument(
        "--set-parameter",
        dest="parameters",
        type=command_parser.parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="start the shards (the routers: enableTestCommands) with this server parameter; kept until changed",
    )
    parser.add_argument(
        "--orphan-cleanup-delay",
        dest="parameters",
        type=command_parser.orphan_cleanup_delay,
        action="append",
        metavar="SECONDS",
        help=f"delay before a shard deletes documents it has given away, {ORPHAN_CLEANUP_DELAY} (default: 900)",
    )
    parser.add_argument(
        "--verify-migrations",
        dest="parameters",
        action="append_const",
        const=(VERIFY_MIGRATIONS, "true"),
        help="compare the documents of donor and recipient before each migration is committed",
    )


def _add_daemon_options(parser: argparse.ArgumentParser) -> None:
    for role in DAEMONS:
        parser.add_argument(
            f"--{role}-option",
            dest=f"{role}_options",
            type=command_parser.daemon_option,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"start each {role} with its option --NAME; kept until changed, or removed with NAME=",
        )
