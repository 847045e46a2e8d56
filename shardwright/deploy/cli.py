"""The ``shardwright`` command."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from bson.json_util import dumps

from shardwright.deploy.balancing import explanation_text, status_text
from shardwright.deploy.cluster import LocalCluster, json_line
from shardwright.deploy.cluster_text import cluster_text, how_to_connect
from shardwright.deploy.command_line import argument_parser
from shardwright.deploy.consistency import inconsistencies_text
from shardwright.deploy.daemon_options import DAEMONS
from shardwright.deploy.errors import DeployError
from shardwright.deploy.interrupts import signals_interrupt
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.steps import Steps
from shardwright.deploy.up_options import UpOptions
from shardwright.mongosh_compat.jstests.command import run_command as run_jstests
from shardwright.mongosh_compat.runner import MongoshNotFoundError
from shardwright.sync.cli import SyncCommandError
from shardwright.sync.cli import run_command as run_sync

EXIT_INCONSISTENT: Final = 2
"""The exit status of `shardwright check` if it has found something; 1 is that of errors."""

EXIT_INTERRUPTED: Final = 130
"""The exit status that a shell reports for a command ended by SIGINT."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the return value is its exit status."""
    options = argument_parser().parse_args(arguments)
    try:
        with signals_interrupt():
            return _COMMANDS[options.command](options)
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
            steps.say(how_to_connect(document))
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
    print(json_line(document) if options.json else cluster_text(document))
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


def _sync(options: argparse.Namespace) -> int:
    try:
        return run_sync(options, sys.stdout)
    except SyncCommandError as error:
        raise DeployError(str(error)) from error


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "kill": _kill,
    "restart": _restart,
    "rotate-key": _rotate_key,
    "cluster-auth-mode": _cluster_auth_mode,
    "add-shard": _add_shard,
    "remove-shard": _remove_shard,
    "balancer": _balancer,
    "check": _check,
    "jstest": _jstest,
    "sync": _sync,
}


if __name__ == "__main__":
    sys.exit(main())
