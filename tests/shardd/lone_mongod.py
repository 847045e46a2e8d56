"""A real mongod that belongs to no shard, as a daemon's code sees its local mongod."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from bench.mongods import primary_mongod
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.pool import ConnectionPools
from tests.transports import new_transport

TEST_SECONDS_MAX: Final = 60.0

CACHE_GB: Final = 1.0
"""A mongod refuses transactions that fill a tenth of it (eviction_updates_trigger); tests have some of 27 MB."""


@dataclass(frozen=True)
class LoneMongod:
    """The primary of a replica set with one member.

    Attributes:
        address: its ``host:port``.
        socket: its UNIX socket.
    """

    address: str
    socket: str

    @asynccontextmanager
    async def local(self) -> AsyncIterator[LocalMongod]:
        """The mongod as a daemon's local one."""
        async with trio.open_nursery() as nursery:
            pools = ConnectionPools(new_transport(), lambda: handshake_document("tests"))
            nursery.start_soon(pools.run)
            yield LocalMongod(pools, self.socket, self.address)
            nursery.cancel_scope.cancel()

    def run(self, test: Callable[[LocalMongod], Awaitable[None]]) -> None:
        """Run a test with it, for a minute at most."""

        async def main() -> None:
            with trio.fail_after(TEST_SECONDS_MAX):
                async with self.local() as mongod:
                    await test(mongod)

        trio.run(main)


@contextmanager
def lone_mongod(directory: Path) -> Iterator[LoneMongod]:
    """Run one until the end of the block."""
    with PortReservation() as ports:
        plan = ProcessPlan("lone", Role.MONGOD, ports.hold_free(), "lone")
        ports.release(*plan.ports())
        with primary_mongod(find_mongod(), plan, directory / "lone", CACHE_GB):
            yield LoneMongod(plan.address, str(directory / "lone" / plan.socket_name))
