"""Core dumps of the launcher and of the mongods that it starts, whose memory holds the keys of the cluster.

The daemons forbid their own core dumps in the same way: no core files, and no memory in the dump that the kernel pipes
to a program (``core(5)``).
"""

import resource
from pathlib import Path
from typing import Final

from shardwright.deploy.errors import DeployError

_FILTER: Final = Path("/proc/self/coredump_filter")
_NO_MEMORY: Final = "0"


def forbid_core_dumps() -> None:
    """Keep the memory of this process and of its future children out of core dumps."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _FILTER.write_text(_NO_MEMORY)
    except OSError as error:
        raise DeployError(f"cannot keep the keys out of core dumps: {error}") from error
