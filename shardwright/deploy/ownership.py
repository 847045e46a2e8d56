"""Checks that no other user controls the files of a cluster's directory.

The files name the program that is started as mongod, the key that authenticates the processes, and the first user's
password. So a directory prepared by another user is refused, for instance the default one in a world-writable place.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout

_ROOT: Final = 0


def check_ownership(layout: Layout, state: ClusterState) -> None:
    """Check that no other user owns or may write the files with which processes are about to be started.

    The administrator of the machine (root) may own them. Group write permission is the choice of the directory's owner.

    Raises:
        DeployError: another user owns a file or may write to it, or a file cannot be examined.
    """
    try:
        for path in _trusted(layout, state):
            status = path.stat()
            if status.st_uid not in (os.geteuid(), _ROOT):
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
