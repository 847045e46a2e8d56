"""The environment of a process: its pid file, core dumps, the service manager, and whether it may run in its cluster.

Messages follow the protocol of systemd's ``sd_notify``, one datagram a message.

A core dump would write the keys in the memory of a process to a file or pass them to a program. The size limit alone
does not prevent that, because the kernel ignores it when it passes cores to a program. So all memory is left out as
well (``core(5)``). Both settings also apply to child processes.
"""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from shardwright.wire.logger import get_logger

logger = get_logger("daemon.run")

_STATUS_SECONDS: Final = 5.0
_STATUS_WITHOUT_REASON: Final = "Serving"

EXIT_NEED_DOWNGRADE: Final = 62
"""The daemon's exit code, as of a mongod that finds data files of another version (``EXIT_NEED_DOWNGRADE``)."""


class ServiceManager:
    """The service manager that started this process; without one all messages are dropped.

    Args:
        is_main: whether this is the process that was started, and not one of its children.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, *, is_main: bool = True) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._is_main = is_main
        microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        is_watched = is_main and microseconds.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(microseconds) / 1e6 if self._address and is_watched else None
        """The manager ends the process after this time without a message; None if there is no watchdog."""

    def ready(self) -> None:
        """Report that the process serves clients; of several processes that share a port, the first one reports it."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that the process applies a changed configuration, until it is `ready` again."""
        if self._is_main:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the process shuts down."""
        if self._is_main:
            self._send("STOPPING=1")

    def alive(self) -> None:
        """Reset the watchdog."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Show a line of text in ``systemctl status``."""
        if self._is_main:
            self._send(f"STATUS={text}")

    async def report(self, not_ready_reason: Callable[[], str | None]) -> None:
        """Feed the watchdog, and show the reason why clients cannot be served; runs until cancelled."""
        if not self._address or not self._is_main:
            return
        pause = _STATUS_SECONDS if self.watchdog_seconds is None else min(_STATUS_SECONDS, self.watchdog_seconds / 2)
        shown = None
        while True:
            if self.watchdog_seconds is not None:
                self.alive()
            status = not_ready_reason() or _STATUS_WITHOUT_REASON
            if status != shown:
                self.status(status)
                shown = status
            await trio.sleep(pause)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            logger.warning("Could not notify the service manager", error=str(error))


@contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Keep the file while the block runs; does nothing without a path. OSError if it cannot be written."""
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


_COREDUMP_FILTER: Final = Path("/proc/self/coredump_filter")

_NO_MEMORY: Final = "0"


def forbid_core_dumps() -> None:
    """Exclude the memory of this process from core dumps, however it ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _COREDUMP_FILTER.write_text(_NO_MEMORY)
    except OSError as error:
        logger.warning("Could not keep memory out of core dumps", error=str(error))


class UnfitClusterError(Exception):
    """The daemon must not run in its cluster; the message gives the reason and the remedy. It ends the process."""


def check_fitness(refusal: str | None) -> None:
    """End this daemon with UnfitClusterError if there is a reason for it; None if it may run in its cluster."""
    if refusal is not None:
        raise UnfitClusterError(refusal)
