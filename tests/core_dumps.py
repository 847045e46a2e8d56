"""Core dump settings of processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_SIZE: Final = "Max core file size"


@dataclass(frozen=True)
class CoreDump:
    """A core dump, as ``core(5)`` has it.

    Attributes:
        bytes_max: of the file: the limit, and how far the process may raise it.
        memory: the kinds of memory in it, as bits.
    """

    bytes_max: tuple[str, str]
    memory: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Read the settings of a process."""
        folder = Path("/proc") / str(pid)
        (limit,) = (line for line in (folder / "limits").read_text().splitlines() if line.startswith(_SIZE))
        soft, hard, _ = limit.removeprefix(_SIZE).split()
        return cls((soft, hard), int((folder / "coredump_filter").read_text(), 16))


NOTHING: Final = CoreDump(("0", "0"), 0)
"""The settings of a process with secrets: no core dump."""
