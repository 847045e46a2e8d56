"""``shardwright finish-upgrade``: raise the feature version of a cluster, or list the obstacles."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pymongo
from pymongo import MongoClient, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import (
    ServerHeartbeatFailedEvent,
    ServerHeartbeatListener,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
)

from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import DEFAULT_DIRECTORY
from shardwright.deploy.mongod import client_of
from shardwright.deploy.steps import Steps

_COMMAND_NOT_FOUND: Final = 59

_TIME_LIMITS: Final = ("serverSelectionTimeoutMS", "connectTimeoutMS")
_ANSWER_SECONDS: Final = 5
"""Time limit for a router to answer, unless the connection string has one. The command itself may take longer."""


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
    return 1 if _obstacles(reply) else 0


def finish_upgrade(uri: str, log_in: Mapping[str, Any], *, is_dry_run: bool = False) -> dict[str, Any]:
    """Run ``finishUpgrade`` and return its reply.

    It has the cluster's ``featureVersion``, the ``newest`` one that its config servers support, ``obstacles``, and for
    each of the ``daemons`` the newest one that it supports.

    Args:
        is_dry_run: whether to change nothing.
    """
    servers = _Servers()
    with _client(uri, log_in, servers) as client:
        try:
            servers.check_are_routers(client)
            reply: dict[str, Any] = client.admin.command("finishUpgrade", 1, dryRun=is_dry_run)
        except OperationFailure as error:
            raise servers.refusal(error) from error
        except PyMongoError as error:
            raise DeployError(f"the cluster does not answer: {reason(error).partition(' (configured')[0]}") from error
    return reply


def _client(uri: str, log_in: Mapping[str, Any], servers: "_Servers") -> MongoClient[dict[str, Any]]:
    limits = {name: _ANSWER_SECONDS * 1000 for name in _TIME_LIMITS if name.lower() not in uri.lower()}
    return client_of(uri, {"event_listeners": [servers], **limits, **log_in})


class _Servers(ServerHeartbeatListener):
    """The kinds of the servers in a connection string. The client itself forgets them after a refused log-in."""

    def __init__(self) -> None:
        self._is_mongos: dict[str, bool] = {}

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        """Do nothing."""

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        """Do nothing."""

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        """Record the kind of a server."""
        host, port = event.connection_id
        # A UNIX socket has no port.
        address = host if port is None else f"{host}:{port}"
        self._is_mongos[address] = event.reply.document.get("msg") == "isdbgrid"

    def check_are_routers(self, client: MongoClient[dict[str, Any]]) -> None:
        """Raise DeployError if a server is not a Shardwright router; errors as a command."""
        with pymongo.timeout(_ANSWER_SECONDS):
            build = client.admin.command("buildInfo", read_preference=ReadPreference.NEAREST)
        self._check_kinds()
        if "shardwright" not in build.get("modules", ()):
            raise _not_routers(self._is_mongos, "MongoDB's mongos")

    def refusal(self, error: OperationFailure) -> DeployError:
        """Return the error to report for a failed command."""
        self._check_kinds()
        if error.code == _COMMAND_NOT_FOUND:
            return DeployError("the router is of a release without finishUpgrade: upgrade all daemons first")
        return DeployError(f"the cluster refused: {reason(error)}")

    def _check_kinds(self) -> None:
        others = [address for address, is_mongos in self._is_mongos.items() if not is_mongos]
        if others:
            raise _not_routers(others, "a mongod, or a daemon in front of one")


def _not_routers(addresses: Iterable[str], kind: str) -> DeployError:
    return DeployError(
        f"{', '.join(sorted(addresses))} is not a Shardwright router ({kind}): name a router of the cluster with --uri"
    )


def upgrade_text(reply: Mapping[str, Any]) -> str:
    """Describe the reply in words."""
    version, newest = reply["featureVersion"], _newest(reply)
    if version == newest:
        return f"the cluster has feature version {version}, the newest one that its daemons know"
    if version == reply["newest"]:
        lines = [f"the cluster has feature version {version}; finish-upgrade cannot raise it to {newest}"]
    else:
        lines = [f"the cluster has feature version {version}; finish-upgrade would raise it to {newest}"]
    known = [
        f"  {each['name']} knows feature versions up to {each['newest']}"
        for each in reply.get("daemons", ())
        if "newest" in each
    ]
    return "\n".join([*lines, *known, *(f"  in the way: {each}" for each in _obstacles(reply))])


def _newest(reply: Mapping[str, Any]) -> int:
    """Return the newest version that any daemon supports: the config servers' primary may be of an older release."""
    newest: int = max([reply["newest"], *(each.get("newest", 0) for each in reply.get("daemons", ()))])
    return newest


def _obstacles(reply: Mapping[str, Any]) -> list[str]:
    newest = _newest(reply)
    if newest == reply["newest"]:
        return list(reply.get("obstacles", ()))
    return [
        f"{each['name']} does not know feature version {newest}; upgrade and restart it"
        if "newest" in each
        else f"{each['name']} cannot be reached ({each['error']})"
        for each in reply["daemons"]
        if each.get("newest", 0) < newest
    ]
