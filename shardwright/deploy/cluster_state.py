"""The settings of a cluster in its state file, among them options of daemons and server parameters.

``--router-option NAME=VALUE`` and its like add options to daemons, such as limits and timeouts. The launcher has a list
of the daemon options that it sets itself, and refuses those here. Any other option is checked by the daemon's own
command line parser, before anything is started or saved.

Most server parameters belong to the shards' mongods, which have the parameters for sharding in every role; shard
daemons have a few of their own. Test commands are enabled on routers; the mongods behind daemons always have them.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from shardwright.deploy.access import KEY_FILE
from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import ProcessPlan, Role, Topology

FORMAT: Final = 1
"""The number of the file's format."""

# Defaults for fields that older state files lack.
DEFAULT_CACHE_GB: Final = 0.25
DEFAULT_WORKERS: Final = 1
DEFAULT_LOG_ROTATE: Final = "rename"

DaemonOptions = Mapping[Role, Mapping[str, str]]
"""Options by role, and by their names without dashes. An empty value removes the option."""

DAEMONS: Final = (Role.ROUTER, Role.SHARDD, Role.CONFIGD)

_GIVEN_BY_LAUNCHER: Final = frozenset(
    {
        *("bind-ip", "port", "metrics-bind-ip", "metrics-port", "unix-socket-directory", "log-file", "log-rotate"),
        *("configdb", "workers", "mongod-socket", "mongod-address", "set-parameter", "key-file"),
        *("tls-mode", "tls-certificate-key-file", "tls-cluster-file", "tls-ca-file", "mongod-tls"),
        "cluster-auth-mode",
    }
)

_HELP_SECONDS_MAX: Final = 60.0

ORPHAN_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
VERIFY_MIGRATIONS: Final = "verifyMigrations"
ENABLE_TEST_COMMANDS: Final = "enableTestCommands"
DIAGNOSTIC_DATA: Final = "diagnosticDataCollectionEnabled"

_SESSION_TIMEOUT: Final = "localLogicalSessionTimeoutMinutes"
_OF_ALL_MONGODS: Final = frozenset({_SESSION_TIMEOUT, DIAGNOSTIC_DATA})

_OF_CONFIG_MONGODS: Final = {"periodicNoopIntervalSecs": "1"}
"""Parameters that a genuine config server sets itself. Its cluster time advances every second instead of every ten."""

_OF_BOTH: Final = frozenset({"enablePassages"})
_OF_SHARD_DAEMONS: Final = _OF_BOTH | frozenset(
    {
        *(VERIFY_MIGRATIONS, "migrationCatchUpTimeoutSecs"),
        *("autoSplitChunks", "autoSplitGrowthFraction", "keyStatistics", "keyStatisticsIntervalSecs"),
    }
)
_OF_ROUTERS: Final = frozenset({ENABLE_TEST_COMMANDS, "queryStatsShapesMax"}) | _OF_BOTH
_OF_ROUTERS_TOO: Final = frozenset(
    {
        *("disableLogicalSessionCacheRefresh", "logicalSessionRefreshMillis", "maxAcceptableLogicalClockDriftSecs"),
        *("maxSessions", _SESSION_TIMEOUT),
    }
)
"""Parameters of routers as well as of the shards' mongods."""


@dataclass(frozen=True)
class ClusterState:
    """The contents of ``cluster.json``.

    Attributes:
        cache_gb: WiredTiger cache of each mongod, in GiB.
        sockets: directory of the processes' UNIX sockets.
        parameters: server parameters of the shards.
        separate_sockets: whether each daemon has its own socket directory.
        log_rotate: action on a log file at rotation, ``rename`` or ``reopen``.
        has_access_control: whether processes and clients have to log in.
        added: every shard that was ever added to the cluster. One that the catalog no longer has was removed, and must
            not be added again.
        cluster_auth_mode: how the processes authenticate to each other (`deploy.access`), with access control.
    """

    topology: Topology
    mongod: str
    cache_gb: float
    workers: int
    sockets: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    separate_sockets: bool = False
    log_rotate: str = DEFAULT_LOG_ROTATE
    daemon_options: DaemonOptions = field(default_factory=dict)
    has_access_control: bool = False
    added: frozenset[str] = frozenset()
    has_tls: bool = False
    cluster_auth_mode: str = KEY_FILE

    def sockets_of(self, name: str) -> Path:
        """Return the directory in which the daemon ``name`` looks for UNIX sockets."""
        return self.sockets / name if self.separate_sockets else self.sockets

    def address(self, plan: ProcessPlan) -> str:
        """Return the address for clients on this machine: ``host:port``, or the path of a mongod's UNIX socket."""
        return str(self.mongod_socket(plan)) if plan.port is None else plan.address

    def mongod_socket(self, plan: ProcessPlan) -> Path:
        """Return the path of the UNIX socket on which a mongod listens."""
        return self.sockets / plan.socket_name

    def to_document(self) -> dict[str, Any]:
        """Return the contents of the state file except what depends on its location.

        That is the directory, and a socket directory outside of it.
        """
        return {
            "format": FORMAT,
            "mongod": self.mongod,
            "cacheGB": self.cache_gb,
            "workers": self.workers,
            "parameters": dict(self.parameters),
            "separateSockets": self.separate_sockets,
            "logRotate": self.log_rotate,
            "daemonOptions": {role.value: dict(options) for role, options in self.daemon_options.items() if options},
            "accessControl": self.has_access_control,
            "added": sorted(self.added),
            "tls": self.has_tls,
            "clusterAuthMode": self.cluster_auth_mode,
            **self.topology.to_document(),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any], sockets: Path) -> Self:
        """Restore the cluster from the result of ``to_document``.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the document has another structure.
        """
        return cls(
            Topology.from_document(document),
            document.get("mongod", ""),
            document.get("cacheGB", DEFAULT_CACHE_GB),
            document.get("workers", DEFAULT_WORKERS),
            sockets,
            document.get("parameters", {}),
            document.get("separateSockets", False),
            document.get("logRotate", DEFAULT_LOG_ROTATE),
            {Role(role): dict(options) for role, options in document.get("daemonOptions", {}).items()},
            document.get("accessControl", False),
            frozenset(document.get("added", ())),
            document.get("tls", False),
            document.get("clusterAuthMode", KEY_FILE),
        )


def parse_option(text: str) -> tuple[str, str]:
    """Parse name and value from ``NAME=VALUE``, which may begin with dashes.

    Raises:
        ValueError: it is not of that form, or the launcher sets this option itself.
    """
    name, equals, value = text.removeprefix("--").partition("=")
    if not equals or not name.replace("-", "").isalnum() or name.startswith("-"):
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    if name in _GIVEN_BY_LAUNCHER:
        raise ValueError(f"{name} is an option that `up` sets itself")
    return name, value


def combined(before: DaemonOptions, changes: DaemonOptions) -> dict[Role, dict[str, str]]:
    """Merge changes into a cluster's options."""
    merged = {role: {**before.get(role, {}), **changes.get(role, {})} for role in DAEMONS}
    return {role: {name: value for name, value in options.items() if value} for role, options in merged.items()}


def check_options(options: DaemonOptions) -> None:
    """Check each daemon's options with its own command line parser."""
    for role, of_role in options.items():
        given = {name: value for name, value in of_role.items() if value}
        if given:
            _check_options_of(role, given)


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return the options as words of a daemon's command line."""
    return [f"--{name}={value}" for name, value in options.items()]


def _check_options_of(role: Role, options: Mapping[str, str]) -> None:
    command = [sys.executable, "-P", "-m", f"shardwright.{role}.main", *option_words(options), "--help"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_HELP_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"cannot check the options of the {role}: {error}") from error
    if completed.returncode:
        reason = (completed.stderr.splitlines() or ["no reason given"])[-1].partition("error: ")
        raise DeployError(f"--{role}-option: {reason[2] or reason[0]}")
    known = set(completed.stdout.replace(",", " ").split())
    for name in options:
        if f"--{name}" not in known:
            raise DeployError(f"--{role}-option: the {role} has no option --{name}")


def parse_parameter(text: str) -> tuple[str, str]:
    """Parse name and value from ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isalnum() or not value:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def parameters_of_daemon(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for shard daemons."""
    return {name: value for name, value in parameters.items() if name in _OF_SHARD_DAEMONS}


def parameters_of_router(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for routers."""
    return {name: value for name, value in parameters.items() if name in _OF_ROUTERS | _OF_ROUTERS_TOO}


def parameters_of_config_mongod(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for the config servers' mongods, and add the ones that only these have.

    One of them determines the expiry of ``config.system.sessions``.
    """
    return {**_OF_CONFIG_MONGODS, **{name: value for name, value in parameters.items() if name in _OF_ALL_MONGODS}}


def parameters_of_mongod(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for the shards' mongods."""
    return {name: value for name, value in parameters.items() if name not in _OF_SHARD_DAEMONS | _OF_ROUTERS}
