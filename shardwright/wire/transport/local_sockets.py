"""UNIX sockets between daemons on the same machine, at half the cost of TCP over the loopback interface.

A daemon that is started with a socket directory also listens on a socket there, named after its address. Daemons with
the same directory find each other's sockets by that name. Without a socket, or a process that listens on it, they use
TCP.
"""

from pathlib import Path


class LocalSockets:
    """The socket directory of this process, unset until `use` is called, once, at startup."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def use(self, directory: Path) -> None:
        """Set the directory of the other daemons' sockets."""
        self._directory = directory

    def path_of(self, address: str) -> str | None:
        """Return the socket of the daemon at ``host:port``; None if it has none on this machine."""
        if self._directory is None:
            return None
        path = socket_path(self._directory, address)
        return str(path) if path.exists() else None


def socket_path(directory: Path, address: str) -> Path:
    """Return the path of the socket of the daemon at ``host:port``."""
    return directory / f"{address}.sock"


LOCAL_SOCKETS = LocalSockets()
"""Shared by all connections of the process."""
