"""The pid files of a cluster: which process is, or was last, each of its processes.

A pid file is bound to the directory that the process was started from, so that a copy of a running cluster's directory
controls nothing of the original.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.deploy.durable_files import write_json
from shardwright.deploy.processes import ProcessIdentity, command_line


@dataclass(frozen=True)
class PidFile:
    """What a pid file says. At most one of ``identity``, ``original`` and ``damage`` is not None.

    Attributes:
        identity: the process, running or not.
        original: the path of the other directory from which the process, which runs, was started; this file is a copy.
        damage: why the file cannot be read.
    """

    identity: ProcessIdentity | None = None
    original: str | None = None
    damage: str | None = None


def save_pid_file(path: Path, identity: ProcessIdentity, root: Path, directory: str) -> None:
    """Remember a process.

    Args:
        path: the pid file.
        identity: the process.
        root: path of the cluster's directory.
        directory: its identity (see `deploy.marks`).

    Raises:
        DeployError: the file cannot be written.
    """
    document = {"pid": identity.pid, "started": identity.started, "directory": directory, "path": str(root)}
    write_json(path, document)


def load_pid_file(path: Path, log: Path, directory: str) -> PidFile:
    """Read a pid file; one that does not exist says nothing.

    Args:
        path: the pid file.
        log: the log file of the process, by which those are recognised whose pid file names no directory yet.
        directory: identity of the cluster's directory.
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
        # A directory may have another number after the machine was started again, and nothing of then still runs.
        return PidFile(identity=identity)
    return PidFile(original=_path_of(document))


def _path_of(document: dict[str, Any]) -> str:
    return str(document.get("path", "another directory"))


def _damage(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
