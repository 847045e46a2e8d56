"""The ``shardwright`` command."""

import argparse
import math
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bson.json_util import dumps

from shardwright.deploy.balancing import ACTIONS, explanation_text, status_text
from shardwright.deploy.cluster import LocalCluster, json_line
from shardwright.deploy.consistency import inconsistencies_text
from shardwright.deploy.daemon_options import DAEMONS, parse_option
from shardwright.deploy.errors import DeployError
from shardwright.deploy.interrupts import signals_interrupt
from shardwright.deploy.layout import DEFAULT_CACHE_GB
from shardwright.deploy.migrations import migration_text
from shardwright.deploy.modes import MODES
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.parameters import ORPHAN_CLEANUP_DELAY, VERIFY_MIGRATIONS, parse_parameter
from shardwright.deploy.reshardings import resharding_text
from shardwright.deploy.steps import Steps
from shardwright.deploy.up_options import (
    DEFAULT_PORT,
    DEFAULT_START_TIMEOUT,
    MEMBERS_MAX,
    ROUTERS_MAX,
    SHARDS_MAX,
    WORKERS_MAX,
    UpOptions,
)
from shardwright.mongosh_compat.jstests.command import add_options as add_jstest_options
from shardwright.mongosh_compat.jstests.command import run_command as run_jstests
from shardwright.mongosh_compat.runner import MongoshNotFoundError

DEFAULT_DIRECTORY = Path(".shardwright")

# The exit status of `shardwright check` if it has found something; 1 is that of errors.
EXIT_INCONSISTENT = 2

# The exit status that a shell reports for a command ended by SIGINT.
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the return value is its exit status."""
    options = argument_parser().parse_args(arguments)
    try:
        with signals_interrupt():
            status: int = options.run(options)
            return status
    except DeployError as error:
        print(f"shardwright: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("shardwright: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _up(options: argparse.Namespace) -> int:
    steps = Steps(sys.stderr if options.json else sys.stdout)
    cluster = LocalCluster(options.dir, steps)
    cluster.up(
        UpOptions(
            shards=options.shards,
            members=options.members,
            config_members=options.config_members,
            routers=options.routers,
            port=options.port,
            mongod=options.mongod,
            workers=options.workers,
            cache_gb=options.cache_gb,
            log_rotate=options.log_rotate,
            parameters=dict(options.parameters),
            daemon_options={role: dict(getattr(options, f"{role}_options")) for role in DAEMONS},
            separate_sockets=options.separate_sockets,
            auth=options.auth,
            tls=options.tls,
            cluster_auth_mode=options.cluster_auth_mode,
            start_timeout=options.timeout,
        )
    )
    try:
        document = cluster.describe()
        if options.json:
            print(json_line(document), flush=True)
        else:
            steps.say(_how_to_connect(document))
        if not options.detach:
            steps.say("Ctrl-C stops the cluster and keeps its data")
            cluster.watch()
            steps.say("the cluster was stopped")
    except KeyboardInterrupt:
        steps.say("")
        cluster.down()
    return 0


def _down(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).down()
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    document = {
        **cluster.describe(),
        "migrations": cluster.migrations(),
        "reshardings": cluster.reshardings(),
    }
    print(json_line(document) if options.json else _status_text(document))
    return 0 if all(process["pid"] for process in document["processes"]) else 1


def _kill(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).kill(options.name, options.signal)
    return 0


def _restart(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).restart(options.name, options.timeout)
    return 0


def _rotate_key(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).rotate_key(options.timeout)
    return 0


def _cluster_auth_mode(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).change_cluster_auth_mode(options.mode)
    return 0


def _add_shard(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).add_shard(options.members, options.timeout)
    return 0


def _remove_shard(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).remove_shard(options.name)
    return 0


def _balancer(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    document = cluster.balancer(options.action)
    if options.explain:
        document |= cluster.explain_balancer()
    if options.json:
        print(json_line(document))
    else:
        print(status_text(document))
        if options.explain:
            print(explanation_text(document))
    return 0


def _check(options: argparse.Namespace) -> int:
    found = LocalCluster(options.dir, Steps()).check(indexes=options.indexes)
    print(dumps({"inconsistencies": found}) if options.json else inconsistencies_text(found))
    return EXIT_INCONSISTENT if found else 0


def _jstest(options: argparse.Namespace) -> int:
    try:
        return run_jstests(options, [sys.executable, "-m", "shardwright.deploy.cli"], find_mongod())
    except (FileNotFoundError, MongoshNotFoundError) as error:
        raise DeployError(str(error)) from error


def _status_text(document: dict[str, Any]) -> str:
    parts = [_process_table(document)]
    if document["migrations"]:
        parts.append("\n".join(map(migration_text, document["migrations"])))
    if document["reshardings"]:
        parts.append("\n".join(map(resharding_text, document["reshardings"])))
    return "\n\n".join([*parts, _how_to_connect(document)])


def _how_to_connect(document: dict[str, Any]) -> str:
    access, tls = document.get("auth"), document.get("tls")
    words = ["mongosh"]
    if access is not None:
        words += ["--username", access["user"]]
    if tls is not None:
        words += ["--tls", "--tlsCAFile", tls["caFile"], "--tlsCertificateKeyFile", tls["clientCertificateFile"]]
    shown = f"connect with: {shlex.join([*words, document['uri']])}"
    if access is None:
        return shown
    return f"{shown}\nwhich asks for the password; it is in {access['passwordFile']}"


def _process_table(document: dict[str, Any]) -> str:
    rows = [("NAME", "ADDRESS", "METRICS", "PID", "LOG")]
    for process in document["processes"]:
        name = process["name"]
        pid = str(process["pid"]) if process["pid"] else "not running"
        rows.append((name, process["address"], document["metrics"].get(name, "-"), pid, process["log"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)


def _signal(text: str) -> signal.Signals:
    """A signal by its number or name, with or without SIG."""
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal") from None


def argument_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="shardwright", description="A sharded MongoDB cluster on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=description, description=description)
        subparser.set_defaults(run=run)
        subparser.add_argument(
            "--dir",
            type=Path,
            default=DEFAULT_DIRECTORY,
            help=f"directory of the cluster (default: {DEFAULT_DIRECTORY})",
        )
        return subparser

    up = command("up", _up, "Start a cluster, or restart the one in the directory.")
    _add_size(up)
    up.add_argument(
        "--port", type=_port, help=f"port of the first router, 0 for any free one (default: {DEFAULT_PORT})"
    )
    up.add_argument("--mongod", metavar="PATH", help="mongod to run (default: $SHARDWRIGHT_MONGOD, PATH, embedded)")
    up.add_argument(
        "--cache-gb", type=_amount, metavar="GIB", help=f"WiredTiger cache of each mongod (default: {DEFAULT_CACHE_GB})"
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
    up.add_argument("--detach", action="store_true", help="return and leave the cluster running")
    up.add_argument(
        "--json", action="store_true", help="print one JSON line on standard output, everything else on standard error"
    )
    _add_timeout(up)

    status = command(
        "status", _status, "Show processes and migrations; the exit status is 1 if a process is not running."
    )
    status.add_argument("--json", action="store_true", help="print the JSON line of `up --json`, and migrations")

    command("down", _down, "Stop the cluster and keep its data.")

    kill = command("kill", _kill, "Send a signal to one process.")
    kill.add_argument("name", help="as `status` shows it, for example shard0.0.mongod")
    kill.add_argument("--signal", type=_signal, default=signal.SIGKILL, help="name or number (default: KILL)")

    restart = command("restart", _restart, "Stop one process, start it again and wait until it is ready.")
    restart.add_argument("name", help="as `status` shows it, for example router.0")
    _add_timeout(restart)

    rotate_key = command(
        "rotate-key", _rotate_key, "Give a running cluster with access control another key, one process at a time."
    )
    _add_timeout(rotate_key)

    cluster_auth_mode = command(
        "cluster-auth-mode",
        _cluster_auth_mode,
        "Have the processes of a running cluster with --auth and --tls recognise each other by certificates instead "
        "of a key, without a restart.",
    )
    cluster_auth_mode.add_argument("mode", choices=MODES, help="the mode to go to; there is no way back")

    add_shard = command("add-shard", _add_shard, "Start another shard and add it to the running cluster.")
    add_shard.add_argument(
        "--members", type=_count, metavar="N", help="members of its replica set (default: as the other shards)"
    )
    _add_timeout(add_shard)

    remove_shard = command("remove-shard", _remove_shard, "Drain a shard, remove it from the cluster and stop it.")
    remove_shard.add_argument("name", help="the shard, for example shard1")

    balancer = command("balancer", _balancer, "Start or stop the balancer, or show its state and what it does next.")
    balancer.add_argument("action", nargs="?", choices=ACTIONS, default="status", help="(default: status)")
    balancer.add_argument("--explain", action="store_true", help="show the decisions of the next round, with reasons")
    balancer.add_argument("--json", action="store_true", help="print one JSON line")

    check = command("check", _check, "Compare the catalog with the shards; the exit status is 2 if there is damage.")
    check.add_argument("--indexes", action="store_true", help="compare the indexes of the shards too")
    check.add_argument("--json", action="store_true", help="print one line of extended JSON")

    description = "Run integration suites in the style of MongoDB's jstests, on clusters that are started for them."
    jstest = commands.add_parser("jstest", help=description, description=description)
    jstest.set_defaults(run=_jstest)
    add_jstest_options(jstest)
    return parser


def _add_size(parser: argparse.ArgumentParser) -> None:
    def add(option: str, what: str, default: int, maximum: int) -> None:
        parser.add_argument(option, type=int, metavar="N", help=f"{what} (default: {default}, at most {maximum})")

    add("--shards", "number of shards", 2, SHARDS_MAX)
    add("--members", "members of each shard's replica set", 1, MEMBERS_MAX)
    add("--config-members", "members of the config replica set", 1, MEMBERS_MAX)
    add("--routers", "number of routers", 1, ROUTERS_MAX)
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help=f"processes that share each router's port (default: 1, at most {WORKERS_MAX})",
    )


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_amount,
        default=DEFAULT_START_TIMEOUT,
        metavar="SECONDS",
        help=f"give up starting after this long (default: {DEFAULT_START_TIMEOUT:.0f})",
    )


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add ``--set-parameter`` and the options for single parameters; all of them are collected in ``parameters``."""
    parser.add_argument(
        "--set-parameter",
        dest="parameters",
        type=_parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="start the shards (the routers: enableTestCommands) with this server parameter; kept until changed",
    )
    parser.add_argument(
        "--orphan-cleanup-delay",
        dest="parameters",
        type=_orphan_cleanup_delay,
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
            type=_daemon_option,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"start each {role} with its option --NAME; kept until changed, or removed with NAME=",
        )


def _daemon_option(text: str) -> tuple[str, str]:
    try:
        return parse_option(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parameter(text: str) -> tuple[str, str]:
    try:
        return parse_parameter(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _orphan_cleanup_delay(text: str) -> tuple[str, str]:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return ORPHAN_CLEANUP_DELAY, str(int(text))


def _amount(text: str) -> float:
    """A number above 0."""
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return amount


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
