"""Core dumps, which would write the keys in the memory of a process to a file or hand them to a program.

The limit on their size alone does not do: the kernel does not heed it where it hands cores to a program. So all memory
is left out as well (``core(5)``). Both hold for the processes that this one starts, too.
"""

import resource
from pathlib import Path
from typing import Final

from shardwright.wire.logger import get_logger

logger = get_logger("daemon.run")

_FILTER: Final = Path("/proc/self/coredump_filter")
_NO_MEMORY: Final = "0"


def forbid_core_dumps() -> None:
    """Have the kernel write nothing of the memory of this process, however it ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _FILTER.write_text(_NO_MEMORY)
    except OSError as error:
        logger.warning("Could not keep memory out of core dumps", error=str(error))
