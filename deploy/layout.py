"""The directory of one cluster: where everything lies, and the state file that says what the cluster is.

::

    DIR/cluster.json         topology, ports, mongod (written once; its format number guards against other versions)
    DIR/lock                 held by the command that is changing the cluster
    DIR/data/NAME/           dbpath of a mongod
    DIR/logs/NAME.log        log of a process
    DIR/pids/NAME.json       who is running (see `deploy.processes`)
    DIR/sockets/             UNIX sockets of all processes, or in NAME/ those that only the daemon NAME finds; if DIR is
                             too long for that, a directory under the system's temporary one
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.errors import DeployError
from deploy.topology import Topology

FORMAT = 1

# sockaddr_un holds 108 bytes, the last one being the terminating null.
SOCKET_PATH_BYTES_MAX = 107


@dataclass(frozen=True)
class ClusterState:
    """What ``cluster.json`` says.

    Attributes:
        mongod: path of the mongod binary.
        cache_gb: WiredTiger cache of each mongod, in GiB.
        workers: processes per router.
        parameters: what the shards are started with (see `deploy.parameters`).
        separate_sockets: whether each daemon has a socket directory of its own.
    """

    topology: Topology
    mongod: str
    cache_gb: float
    workers: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    separate_sockets: bool = False


@dataclass(frozen=True)
class Layout:
    """The paths inside a cluster's directory. Nothing is created until `create` is called."""

    root: Path

    @property
    def state_file(self) -> Path:
        """Says what the cluster is; a directory without it holds no cluster."""
        return self.root / "cluster.json"

    def data(self, name: str) -> Path:
        """dbpath of the mongod ``name``."""
        return self.root / "data" / name

    def log(self, name: str) -> Path:
        """Log file of the process ``name``."""
        return self.root / "logs" / f"{name}.log"

    def pid_file(self, name: str) -> Path:
        """Says which process is, or was last, the process ``name``."""
        return self.root / "pids" / f"{name}.json"

    @property
    def sockets(self) -> Path:
        """Directory of all UNIX sockets, short enough for any port's socket path, also in `daemon_sockets`."""
        inside = self.root / "sockets"
        if len(os.fsencode(inside / "shard99.99.shardd" / "127.0.0.1:65535.sock")) <= SOCKET_PATH_BYTES_MAX:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"shardwright-{digest}"

    def daemon_sockets(self, name: str) -> Path:
        """Directory of the UNIX sockets that the daemon ``name`` finds, where each has one of its own."""
        return self.sockets / name

    def create(self, mongods: list[str]) -> None:
        """Make every directory that the processes need.

        Raises:
            DeployError: a directory cannot be made, or the short socket directory belongs to somebody else.
        """
        try:
            for directory in (self.root / "logs", self.root / "pids", *map(self.data, mongods)):
                directory.mkdir(parents=True, exist_ok=True)
            # Whoever reaches a mongod's socket reaches its data: no other user may enter, not even by having made the
            # directory first.
            self.sockets.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DeployError(f"cannot create the cluster's directory: {error}") from error
        if self.sockets.stat().st_uid != os.getuid() or self.sockets.is_symlink():
            raise DeployError(f"the socket directory {self.sockets} belongs to another user")

    def create_daemon_sockets(self, names: Iterable[str]) -> None:
        """Make the socket directories of daemons that have their own."""
        for name in names:
            self.daemon_sockets(name).mkdir(mode=0o700, exist_ok=True)

    def remove_sockets(self) -> None:
        """Remove the socket directory, which no other place would: it may lie outside of the cluster's own."""
        shutil.rmtree(self.sockets, ignore_errors=True)

    def save(self, state: ClusterState) -> None:
        """Write the state file, all of it or nothing."""
        document = {
            "format": FORMAT,
            "mongod": state.mongod,
            "cacheGB": state.cache_gb,
            "workers": state.workers,
            "parameters": dict(state.parameters),
            "separateSockets": state.separate_sockets,
            **state.topology.to_document(),
        }
        write_json(self.state_file, document)

    def load(self) -> ClusterState | None:
        """The cluster in this directory, ``None`` when there is none.

        Raises:
            DeployError: the directory was written by another version, or holds other files.
        """
        try:
            document = json.loads(self.state_file.read_bytes())
        except FileNotFoundError:
            self._refuse_foreign_files()
            return None
        except (OSError, ValueError) as error:
            raise DeployError(f"cannot read {self.state_file}: {error}") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise DeployError(
                f"{self.root} holds a cluster of another version (format {found}, this is format {FORMAT}); "
                "use that version, or another --dir"
            )
        topology = Topology.from_document(document)
        return ClusterState(
            topology,
            document["mongod"],
            document["cacheGB"],
            document["workers"],
            document.get("parameters", {}),
            document.get("separateSockets", False),
        )

    def require(self) -> ClusterState:
        """The cluster in this directory.

        Raises:
            DeployError: there is none, or as `load`.
        """
        state = self.load()
        if state is None:
            raise DeployError(f"there is no cluster in {self.root}")
        return state

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other commands from changing this cluster meanwhile.

        Args:
            wait: until another command that is changing it has finished, instead of failing.

        Raises:
            DeployError: another command is changing it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DeployError(f"cannot use the directory {self.root}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise DeployError(f"another shardwright command is changing the cluster in {self.root}") from None
        else:
            yield
        finally:
            os.close(descriptor)

    def _refuse_foreign_files(self) -> None:
        ours = {"lock", "logs", "pids", "data", "sockets"}
        try:
            foreign = sorted(path.name for path in self.root.iterdir() if path.name not in ours)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DeployError(f"cannot use the directory {self.root}: {error}") from error
        if foreign:
            raise DeployError(f"{self.root} is not empty and holds no cluster (it has {foreign[0]}); use another --dir")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` so that a reader sees the old file or the new one, never half of one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(path)
