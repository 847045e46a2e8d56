"""A daemon that answers every command with ``ok: 1``, for tests of the code common to all daemons."""

import sys
from typing import Any, Final

import trio

from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.process import Rereading, introduction, process_configuration
from shardwright.daemon.configuration.table import COMMON
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.run import Reread, run_daemon
from shardwright.wire.message import reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import Transport

PROGRAM: Final = Program.of("toy", "A daemon for tests.", 0, COMMON)


class ToyDaemon:
    """A `daemon.run.Daemon`."""

    shutdown_seconds = 5.0

    def __init__(self) -> None:
        self.metrics = Metrics("toy", ["ping"])

    @classmethod
    async def start(cls, transport: Transport, nursery: trio.Nursery) -> "ToyDaemon":
        """Create it, with a background task that waits forever."""
        nursery.start_soon(trio.sleep_forever)
        return cls()

    async def handle(self, client: ClientConnection, request: Request) -> bytes:
        """Answer ``ok: 1``."""
        reply: dict[str, Any] = {"ok": 1.0}
        return reply_document(request.message.request_id, reply)

    def connection_opened(self, client: ClientConnection) -> None:
        """A client has connected."""

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has disconnected."""

    def not_ready_reason(self) -> str | None:
        """Always ready."""
        return None

    def serving(self, server: Server) -> None:
        """Called before the first client is served."""

    async def rotate_certificates(self, message: str) -> None:
        """Called at SIGHUP."""

    def reconfigure(self, reread: Reread) -> tuple[str, ...]:
        """Called at SIGHUP with a changed configuration."""
        return ()

    async def begin_shutdown(self, seconds: float) -> None:
        """Called after the signal to shut down."""


if __name__ == "__main__":
    found = process_configuration(PROGRAM)
    sys.exit(
        run_daemon(
            "toy",
            found.values,
            ToyDaemon.start,
            introduction=introduction(found),
            read_again=None if found.file is None else Rereading(found),
        )
    )
