"""The mark in the environment of each process of a cluster: its cluster's directory, and its name there.

A directory is identified by its inode, so that a copy is another directory, while a renamed directory is still the
same. Marks identify processes whose pid file was lost, damaged or never written.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from shardwright.deploy.processes import ProcessIdentity

_VARIABLE = "SHARDWRIGHT_PROCESS"


def directory_identity(directory: Path) -> str:
    """Return the identity of a directory, as text.

    Raises:
        OSError: it does not exist or is inaccessible.
    """
    found = directory.stat()
    return f"{found.st_dev}:{found.st_ino}"


def mark(directory: str, name: str) -> dict[str, str]:
    """Return the environment variable that marks the process ``name`` of the cluster in a directory.

    Args:
        directory: the identity of the directory.
    """
    return {_VARIABLE: f"{directory}/{name}"}


def marked_processes(directory: str) -> dict[str, ProcessIdentity]:
    """Return the running processes of the cluster in a directory, by name.

    Their child processes, such as the workers of a router, carry the mark too and are omitted.

    Args:
        directory: the identity of the directory.
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
    """Yield the pids of session leaders; each process of a cluster has its own session, shared by its children."""
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
        return []  # it has ended, or belongs to another user
