"""The directory of one cluster: its paths, its state file, its owner, and the lock of the command that changes it.

::

    DIR/cluster.json         topology, ports, mongod (written once; its format number guards against other versions)
    DIR/auth/                the key file and the first user's password, with access control (see `deploy.access`)
    DIR/tls/                 certificates, with TLS (see `deploy.certs`)
    DIR/lock                 held by the command that is changing the cluster
    DIR/data/NAME/           dbpath of a mongod
    DIR/logs/NAME.log        log of a process
    DIR/logs/NAME.out        output of a mongod before it has opened its log
    DIR/pids/NAME.json       identifies a running process (see `deploy.processes`)
    DIR/sockets/             UNIX sockets of all processes, or in NAME/ the ones that only the daemon NAME uses; if DIR
                             is too long, a directory in the system's temporary one, recorded in the state file

The files name the program that is started as mongod, the key that authenticates the processes, and the first user's
password. So a directory prepared by another user is refused, for instance the default one in a world-writable place.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.deploy.access import KEY_FILE, NO_LOG_IN, Access, has_key
from shardwright.deploy.certs import TlsFiles
from shardwright.deploy.cluster_state import FORMAT, ClusterState
from shardwright.deploy.durable_files import is_unfinished, write_json
from shardwright.deploy.errors import DeployError
from shardwright.deploy.processes import directory_identity
from shardwright.deploy.topology import Role

# sockaddr_un holds 108 bytes, including the terminating null.
SOCKET_PATH_BYTES_MAX = 107

DEFAULT_DIRECTORY: Final = Path(".shardwright")

_OWN_NAMES: Final = frozenset(("auth", "lock", "logs", "pids", "data", "sockets", "tls"))

_OWN_DIRECTORY = 0o755
"""Others may read the directory, but not write to it, whatever the umask allows."""

_ROOT_UID: Final = 0


class DamagedStateError(DeployError):
    """The state file exists but cannot be understood."""


@dataclass(frozen=True)
class Layout:
    """The paths inside a cluster's directory. Nothing is created until `create` is called."""

    root: Path

    @property
    def state_file(self) -> Path:
        """The file that describes the cluster; a directory without it contains no cluster."""
        return self.root / "cluster.json"

    def data(self, name: str) -> Path:
        """Return the dbpath of the mongod ``name``."""
        return self.root / "data" / name

    def log(self, name: str) -> Path:
        """Return the log file of the process ``name``."""
        return self.root / "logs" / f"{name}.log"

    def pid_file(self, name: str) -> Path:
        """Return the file that identifies the current or last process ``name``."""
        return self.root / "pids" / f"{name}.json"

    def output(self, name: str) -> Path:
        """Return the output file of the mongod ``name``, separate from its log, which is renamed at rotation."""
        return self.root / "logs" / f"{name}.out"

    @property
    def access(self) -> Access:
        """The secrets of a cluster with access control."""
        return Access(self.root / "auth")

    @property
    def tls(self) -> TlsFiles:
        """The certificates of a cluster with TLS."""
        return TlsFiles(self.root / "tls")

    def connection(self, state: ClusterState) -> Mapping[str, Any]:
        """Return the launcher's connection options, without a log-in."""
        return self.tls.connection() if state.has_tls else NO_LOG_IN

    def client_connection(self, state: ClusterState) -> Mapping[str, Any]:
        """Return the clients' options for connections to the routers, without a log-in."""
        return self.tls.client_connection() if state.has_tls else NO_LOG_IN

    def log_in(self, state: ClusterState) -> Mapping[str, Any]:
        """Return the launcher's connection options, with a log-in."""
        if state.has_access_control and state.cluster_auth_mode != KEY_FILE:
            return self.tls.log_in()
        return {
            **(self.access.log_in() if state.has_access_control else NO_LOG_IN),
            **self.connection(state),
        }

    def command(self, *words: str) -> str:
        """Return the ``shardwright`` command line for this directory, as typed in the current one."""
        directory = () if self.root == DEFAULT_DIRECTORY.resolve() else ("--dir", str(self.root))
        return shlex.join(["shardwright", *words, *directory])

    def identity(self) -> str:
        """Return the identity of the directory, which stays the same when it is moved."""
        try:
            return directory_identity(self.root)
        except OSError as error:
            raise DeployError(f"cannot use the directory {self.root}: {error}") from error

    def choose_sockets(self) -> Path:
        """Return a directory for UNIX sockets with a short enough path, even for a daemon's own subdirectory."""
        inside = self.root / "sockets"
        if _fits(inside):
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        try:
            temporary = tempfile.gettempdir()
        except OSError:  # gettempdir tries to write, and the disk may be full; creating the files will report that
            temporary = "/tmp"
        outside = [Path(parent) / f"shardwright-{digest}" for parent in (temporary, "/tmp")]
        return next(filter(_fits, outside))

    def create(self, state: ClusterState) -> None:
        """Create every directory that the processes need."""
        sockets, processes = state.sockets, state.topology.processes
        data = (self.data(process.name) for process in processes if process.role is Role.MONGOD)
        try:
            for private in ("data", "logs"):
                (self.root / private).mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in (self.root / "pids", *data):
                directory.mkdir(mode=_OWN_DIRECTORY, parents=True, exist_ok=True)
            # Access to a mongod's socket is access to its data: no other user may enter the directory or have created
            # it.
            sockets.mkdir(mode=0o700, exist_ok=True)
            for process in processes:
                state.sockets_of(process.name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DeployError(f"cannot create the cluster's directory: {error}") from error
        if state.has_access_control:
            self.access.create(has_key=has_key(state.cluster_auth_mode))
        if state.has_tls:
            self.tls.create()
        if sockets.stat().st_uid != os.getuid() or sockets.is_symlink():
            raise DeployError(f"the socket directory {sockets} belongs to another user")

    def save(self, state: ClusterState) -> None:
        """Write the state file atomically."""
        sockets = {} if state.sockets.parent == self.root else {"sockets": str(state.sockets)}
        write_json(self.state_file, {"directory": self.identity(), **sockets, **state.to_document()})

    def load(self) -> ClusterState | None:
        """Read the cluster in this directory; ``None`` if there is none.

        Raises:
            DamagedStateError: the state file cannot be read.
            DeployError: the directory was written by another version, or contains other files.
        """
        document = self._read()
        if document is None:
            return None
        if document["format"] != FORMAT:
            raise DeployError(
                f"{self.root} holds a cluster of another version (format {document['format']}, "
                f"this is format {FORMAT}); use that version, or another --dir"
            )
        try:
            return ClusterState.from_document(document, self._sockets(document))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DeployError(
                f"{self.state_file} was written by another version of shardwright, whose processes are described "
                f"differently ({error}); use that version, or another --dir"
            ) from error

    def require(self) -> ClusterState:
        """Read the cluster in this directory."""
        state = self.load()
        if state is None:
            raise DeployError(f"there is no cluster in {self.root}; start one with `{self.command('up')}`")
        return state

    def _read(self) -> dict[str, Any] | None:
        """Read the state file; ``None`` if there is none."""
        try:
            document = json.loads(self.state_file.read_bytes())
        except FileNotFoundError:
            self._refuse_foreign_files()
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(error) from error
        if not isinstance(document, dict) or "format" not in document:
            raise self._damaged("it does not describe a cluster")
        return document

    def _damaged(self, reason: object) -> DamagedStateError:
        return DamagedStateError(
            f"cannot read {self.state_file}: {reason}; put a copy of it back, or use another --dir"
        )

    def _sockets(self, document: dict[str, Any]) -> Path:
        """Return the directory of the sockets; a copy of the cluster's directory gets its own."""
        if "sockets" in document and document.get("directory") == self.identity():
            return Path(document["sockets"])
        return self.choose_sockets()

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Prevent other commands from changing this cluster during the block.

        If the block fails before there is a cluster, the directories that were created for the lock are removed again.

        Args:
            wait: wait for the other command to finish, instead of failing.

        Raises:
            DeployError: another command is changing the cluster.
        """
        path = self.root / "lock"
        missing = [each for each in (self.root, *self.root.parents) if not each.exists()]
        try:
            self.root.mkdir(mode=_OWN_DIRECTORY, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DeployError(f"cannot use the directory {self.root}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise BlockingIOError  # a command that failed has just removed it, and another may hold a new one
        except BlockingIOError:
            os.close(descriptor)
            raise DeployError(f"another shardwright command is changing the cluster in {self.root}") from None
        try:
            yield
        except BaseException:
            if not self.state_file.exists():
                path.unlink(missing_ok=True)
                with suppress(OSError):  # a directory with other files stays
                    for directory in missing:
                        directory.rmdir()
            raise
        finally:
            os.close(descriptor)

    def _is_own(self, path: Path) -> bool:
        """Whether a file or directory may be in the directory beside the state file."""
        return path.name in _OWN_NAMES or is_unfinished(path.name, self.state_file.stem)

    def remove(self) -> None:
        """Delete the launcher's files from the directory, and the directory itself if nothing else is in it.

        The state file goes last, so that a failed removal can be repeated.
        """
        try:
            with self.lock(wait=True):
                for path in filter(self._is_own, sorted(self.root.iterdir())):
                    if path.name == "lock":
                        continue
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)
                self.state_file.unlink(missing_ok=True)
                (self.root / "lock").unlink(missing_ok=True)
        except OSError as error:
            raise DeployError(f"cannot delete {error.filename}: {error.strerror}") from error
        with suppress(OSError):  # the directory has other files
            self.root.rmdir()

    def _refuse_foreign_files(self) -> None:
        try:
            foreign = sorted(path.name for path in self.root.iterdir() if not self._is_own(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise DeployError(f"cannot use the directory {self.root}: {error}") from error
        if foreign:
            raise DeployError(f"{self.root} is not empty and holds no cluster (it has {foreign[0]}); use another --dir")


def _fits(sockets: Path) -> bool:
    """Whether the longest socket path in this directory is short enough."""
    return len(os.fsencode(sockets / "shard99.99.shardd" / "127.0.0.1:65535.sock")) <= SOCKET_PATH_BYTES_MAX


def remove_sockets(directory: Path) -> None:
    """Remove a directory of sockets, which may be outside the cluster's directory.

    A directory without one of our names stays, in case the state file was edited.
    """
    if directory.name == "sockets" or directory.name.startswith("shardwright-"):
        shutil.rmtree(directory, ignore_errors=True)


def check_ownership(layout: Layout, state: ClusterState) -> None:
    """Check that no other user owns or may write the files with which processes are about to be started.

    The administrator of the machine (root) may own them. Group write permission is the choice of the directory's owner.

    Raises:
        DeployError: another user owns a file or may write to it, or a file cannot be examined.
    """
    try:
        for path in _trusted(layout, state):
            status = path.stat()
            if status.st_uid not in (os.geteuid(), _ROOT_UID):
                raise DeployError(f"{path} belongs to another user, who could have put anything there")
            if status.st_mode & stat.S_IWOTH:
                raise DeployError(f"all users may write to {path}; take that right from them (chmod o-w)")
    except OSError as error:
        raise DeployError(f"cannot find out whom {layout.root} belongs to: {error}") from error


def _trusted(layout: Layout, state: ClusterState) -> Iterator[Path]:
    yield layout.state_file
    yield state.sockets
    secrets = [layout.access.directory] if state.has_access_control else []
    secrets += [layout.tls.directory] if state.has_tls else []
    if secrets:
        yield layout.root
    for directory in secrets:
        yield directory
        yield from directory.iterdir()
