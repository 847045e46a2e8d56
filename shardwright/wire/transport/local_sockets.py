"""UNIX sockets between daemons of one machine, in place of TCP over the loopback interface, which costs twice as much.

A daemon that is started with a socket directory serves clients on a socket there as well, named by the address under
which it is known. Daemons that were given the same directory find each other's sockets by that name, and use TCP where
there is none, or nobody behind it.
"""

from pathlib import Path


class LocalSockets:
    """The socket directory of this process; none until `use` is called, once, at its start."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def use(self, directory: Path) -> None:
        """Look for the sockets of other daemons in ``directory``."""
        self._directory = directory

    def path_of(self, address: str) -> str | None:
        """The socket of the daemon known as ``host:port``; None when there is none on this machine."""
        if self._directory is None:
            return None
        path = socket_path(self._directory, address)
        return str(path) if path.exists() else None


def socket_path(directory: Path, address: str) -> Path:
    """Where the daemon known as ``host:port`` has its socket."""
    return directory / f"{address}.sock"


LOCAL_SOCKETS = LocalSockets()
"""Shared by all connections of the process."""
