"""``shardwright finish-upgrade``: raise the feature version of a cluster, or list the obstacles."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError

from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import DEFAULT_DIRECTORY
from shardwright.deploy.steps import Steps

_COMMAND_NOT_FOUND = 59


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_DIRECTORY,
        help=f"directory of the cluster (default: {DEFAULT_DIRECTORY})",
    )
    parser.add_argument("--uri", help="connection string of routers (default: the cluster in the directory)")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, and print what stands in the way")


def run_finish_upgrade(options: argparse.Namespace) -> int:
    """Run the command and return its exit status, which is 1 if a dry run finds an obstacle."""
    uri, log_in = (
        LocalCluster(options.dir, Steps()).connection() if options.uri is None else (options.uri, dict[str, Any]())
    )
    reply = finish_upgrade(uri, log_in, is_dry_run=options.dry_run)
    print(upgrade_text(reply))
    return 1 if reply.get("obstacles") else 0


def finish_upgrade(uri: str, log_in: Mapping[str, Any], *, is_dry_run: bool = False) -> dict[str, Any]:
    """Run ``finishUpgrade`` and return its ``featureVersion``, ``newest``, and for a dry run ``obstacles``.

    Args:
        is_dry_run: whether to change nothing."""
    try:
        with MongoClient[dict[str, Any]](uri, **log_in) as client:
            reply: dict[str, Any] = client.admin.command("finishUpgrade", 1, dryRun=is_dry_run)
    except ConfigurationError as error:
        raise DeployError(f"the connection string cannot be used: {error}") from error
    except OperationFailure as error:
        if error.code == _COMMAND_NOT_FOUND:
            raise DeployError(
                "the router or the config servers are of a release without finishUpgrade: upgrade all daemons first"
            ) from error
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    except PyMongoError as error:
        raise DeployError(f"the cluster does not answer: {reason(error)}") from error
    return reply


def upgrade_text(reply: Mapping[str, Any]) -> str:
    """Describe the reply in words."""
    version, newest = reply["featureVersion"], reply["newest"]
    if version == newest:
        return f"the cluster has feature version {version}, the newest one of its daemons' release"
    lines = [f"the cluster has feature version {version}; finish-upgrade would raise it to {newest}"]
    return "\n".join([*lines, *(f"  in the way: {each}" for each in reply["obstacles"])])
