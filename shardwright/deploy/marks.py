"""The mark that each process of a cluster has in its environment: the directory it belongs to, and its name there.

A directory is meant by its inode, so that a copy is another directory and one that was renamed is still the same. By
their marks processes are found whose pid file was lost, damaged or never written.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from shardwright.deploy.processes import ProcessIdentity

_VARIABLE = "SHARDWRIGHT_PROCESS"


def directory_identity(directory: Path) -> str:
    """Which directory ``directory`` is, as text.

    Raises:
        OSError: it does not exist, or is out of reach.
    """
    found = directory.stat()
    return f"{found.st_dev}:{found.st_ino}"


def mark(directory: str, name: str) -> dict[str, str]:
    """What marks the process ``name`` of the cluster in the directory of this identity."""
    return {_VARIABLE: f"{directory}/{name}"}


def marked_processes(directory: str) -> dict[str, ProcessIdentity]:
    """The running processes of the cluster in the directory of this identity, by name.

    Those that they have started themselves, such as the workers of a router, carry the mark too and are left out.
    """
    beginning = f"{_VARIABLE}={directory}/".encode()
    found = {}
    for pid in _session_leaders():
        for variable in _environment(pid):
            if variable.startswith(beginning):
                identity = ProcessIdentity.of(pid)
                if identity is not None:
                    found[os.fsdecode(variable[len(beginning) :])] = identity
    return found


def _session_leaders() -> Iterator[int]:
    """Every process of a cluster is started in a session of its own, and what it starts itself stays in that one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            try:
                if os.getsid(pid) == pid:
                    yield pid
            except ProcessLookupError:
                continue


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's
