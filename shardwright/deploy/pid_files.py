"""The pid files of a cluster, which identify the current or last process of each name.

A pid file names the directory from which the process was started, so that a copy of a running cluster's directory does
not control the original's processes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.deploy.durable_files import write_json
from shardwright.deploy.processes import ProcessIdentity, command_line


@dataclass(frozen=True)
class PidFile:
    """The contents of a pid file. At most one of ``identity``, ``original`` and ``damage`` is not None.

    Attributes:
        identity: the process, running or not.
        original: if this file is a copy and the process is running, the directory from which it was started.
        damage: why the file cannot be read.
    """

    identity: ProcessIdentity | None = None
    original: str | None = None
    damage: str | None = None


def save_pid_file(path: Path, identity: ProcessIdentity, root: Path, directory: str) -> None:
    """Record a process.

    Args:
        directory: the directory's identity (see `deploy.marks`)."""
    document = {"pid": identity.pid, "started": identity.started, "directory": directory, "path": str(root)}
    write_json(path, document)


def load_pid_file(path: Path, log: Path, directory: str) -> PidFile:
    """Read a pid file; the result is empty if it does not exist.

    Args:
        log: the process's log file, which identifies the process if an old pid file names no directory.
        directory: the identity of the cluster's directory.
    """
    try:
        document = json.loads(path.read_bytes())
        identity = ProcessIdentity(int(document["pid"]), str(document["started"]))
    except FileNotFoundError:
        return PidFile()
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return PidFile(damage=_damage(error))
    named = document.get("directory")
    is_ours = named == directory if named is not None else str(log) in command_line(identity.pid)
    if is_ours or not identity.is_running():
        # A directory's inode may change when the machine reboots, but then none of its processes is still running.
        return PidFile(identity=identity)
    return PidFile(original=_path_of(document))


def _path_of(document: dict[str, Any]) -> str:
    return str(document.get("path", "another directory"))


def _damage(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
