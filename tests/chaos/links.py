"""The links between the daemons of a cluster, each a proxy that can be slow, silent or broken.

Every daemon has its own socket directory (``shardwright up --separate-sockets``), in which it looks for the sockets of
other daemons. This module listens there in their place, and forwards data to their TCP ports. So each ordered pair of
daemons has its own link.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

START_SECONDS_MAX: Final = 30.0
CHUNK_BYTES: Final = 1 << 16
TURNS_TO_SERVE: Final = 5
"""After so many turns of the event loop, asyncio has brought the last connection from the listening socket to its
handler."""
SLOW_SECONDS: Final = 0.2
"""The delay that a slow link adds to each piece of data."""


class Fault(Enum):
    """The fault of a link."""

    SLOW = "slow"
    SILENT = "silent"
    BROKEN = "broken"


class Link:
    """The link of one ordered pair of daemons; used only in the event loop's thread."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._fault: Fault | None = None
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def harm(self, fault: Fault | None) -> None:
        """Start a fault or, with None, end it."""
        self._fault = fault
        if fault is Fault.SILENT:
            self._is_flowing.clear()
        else:
            self._is_flowing.set()
        if fault is Fault.BROKEN:
            for writer in list(self._writers):
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions until either side closes it."""
        if self._fault is Fault.BROKEN:
            writer.transport.abort()
            return
        try:
            async with self._connected() as (target_reader, target_writer):
                self._writers |= {writer, target_writer}
                try:
                    await asyncio.gather(self._pump(reader, target_writer), self._pump(target_reader, writer))
                finally:
                    self._writers -= {writer, target_writer}
        except (OSError, asyncio.CancelledError):
            # Refused, reset, aborted by a fault, or all links end: the source sees its connection end.
            return
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        await self._is_flowing.wait()
        reader, writer = await asyncio.open_connection(*self._target)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._fault is Fault.SLOW:
                await asyncio.sleep(SLOW_SECONDS)
            # A silent link delivers what it has received later, even if the sender is gone by then.
            await self._is_flowing.wait()
            writer.write(data)
            await writer.drain()
        await self._is_flowing.wait()
        writer.write_eof()


class Links:
    """All links of a cluster, served by a separate thread.

    Attributes:
        pairs: source and target of each, by process name.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="links")

    @contextmanager
    def serving(self, directories: dict[str, Path], addresses: dict[str, str]) -> Iterator[None]:
        """Run a proxy between all daemons during the block.

        Args:
            directories: the socket directory of each daemon.
            addresses: ``host:port`` of each daemon.
        """
        self._thread.start()
        try:
            opening = self._open(directories, addresses)
            asyncio.run_coroutine_threadsafe(opening, self._loop).result(START_SECONDS_MAX)
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(START_SECONDS_MAX)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_SECONDS_MAX)
            self._loop.close()

    @contextmanager
    def harmed(self, source: str, target: str, fault: Fault) -> Iterator[None]:
        """Give a link a fault during the block."""
        link = self._links[source, target]
        self._loop.call_soon_threadsafe(link.harm, fault)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(link.harm, None)

    @contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Silence all links from and to a daemon during the block."""
        with ExitStack() as silenced:
            for source, target in self.pairs:
                if name in (source, target):
                    silenced.enter_context(self.harmed(source, target, Fault.SILENT))
            yield

    async def _open(self, directories: dict[str, Path], addresses: dict[str, str]) -> None:
        for source, directory in directories.items():
            for target, address in addresses.items():
                # Only clients connect to routers.
                if source != target and not target.startswith("router"):
                    host, _, port = address.rpartition(":")
                    link = self._links[source, target] = Link((host, int(port)))
                    path = directory / f"{address}.sock"
                    path.unlink(missing_ok=True)
                    self._paths.append(path)
                    self._servers.append(await asyncio.start_unix_server(link.serve, path))
        self.pairs = sorted(self._links)

    async def _close(self) -> None:
        # A socket stays open if its connection has not come to `serve` when its server is closed or its task cancelled.
        for path in self._paths:
            path.unlink()
        for _ in range(TURNS_TO_SERVE):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Aborted transports close their sockets in the next turn of the loop.
        await asyncio.sleep(0)
