"""The settings of a cluster, as recorded in its state file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from shardwright.deploy.daemon_options import DaemonOptions
from shardwright.deploy.modes import KEY_FILE
from shardwright.deploy.topology import ProcessPlan, Role, Topology

FORMAT: Final = 1
"""The number of the file's format."""

# Defaults for fields that older state files lack.
DEFAULT_CACHE_GB: Final = 0.25
DEFAULT_WORKERS: Final = 1
DEFAULT_LOG_ROTATE: Final = "rename"


@dataclass(frozen=True)
class ClusterState:
    """The contents of ``cluster.json``.

    Attributes:
        cache_gb: WiredTiger cache of each mongod, in GiB.
        sockets: directory of the processes' UNIX sockets.
        parameters: server parameters of the shards (see `deploy.parameters`).
        separate_sockets: whether each daemon has its own socket directory.
        log_rotate: action on a log file at rotation, ``rename`` or ``reopen``.
        has_access_control: whether processes and clients have to log in.
        added: every shard that was ever added to the cluster. One that the catalog no longer has was removed, and must
            not be added again.
        cluster_auth_mode: how the processes authenticate to each other (`deploy.modes`), with access control.
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
