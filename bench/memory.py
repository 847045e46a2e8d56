"""The peak memory of processes during a measurement."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_SAMPLE_SECONDS: Final = 0.05


class PeakMemory:
    """A context that samples the resident memory of processes.

    Args:
        pids: the pids by description.

    Attributes:
        peak: the peak of each process so far, in bytes.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.peak = dict.fromkeys(pids, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        """Start sampling."""
        if self._pids:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling."""
        self._ended.set()
        if self._pids:
            self._thread.join()

    def _sample(self) -> None:
        while True:
            for role, pid in self._pids.items():
                self.peak[role] = max(self.peak[role], resident_bytes(pid))
            if self._ended.wait(_SAMPLE_SECONDS):
                return


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux reports the resident memory of a process")
