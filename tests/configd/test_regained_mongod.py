"""A config daemon that loses its mongod, and finds it primary again in the same term."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from bench.mongods import primary_mongod
from shardwright.configd.balancer.balancer import BalancerMetrics
from shardwright.configd.config_server import ConfigServer
from shardwright.configd.term.term import Term
from shardwright.daemon.metrics import Counter
from shardwright.daemon.sidecar.sidecar import SidecarOptions
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.pool import ConnectionPools, Pool
from shardwright.wire.transport.transport import Timeouts
from tests.pauses import paused
from tests.transports import new_transport

if TYPE_CHECKING:
    from pathlib import Path

SECONDS_MAX = 60.0
TIMEOUTS = Timeouts(hello_seconds=1.0, recheck_seconds=0.5)
LATE = {"create": "late"}


@pytest.fixture
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, SidecarOptions]]:
    """The process id of a separate mongod, and the options of a config daemon in front of it."""
    directory: Path = tmp_path_factory.mktemp("regained") / "lone"
    with PortReservation() as ports:
        plan = ProcessPlan("lone", Role.MONGOD, ports.hold_free(), "lone")
        ports.release(*plan.ports())
        with primary_mongod(find_mongod(), plan, directory, 0.25) as pid:
            yield pid, SidecarOptions("127.0.0.1:1", str(directory / plan.socket_name), plan.address, 100)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await trio.sleep(0.02)


async def is_serving(server: ConfigServer) -> bool:
    return await server.wait_for_term() is not None


async def has_stepped_down(server: ConfigServer) -> bool:
    return server.current_term is None


async def is_in_progress(pool: Pool) -> bool:
    pipeline: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": {"command.create": LATE["create"]}}]
    reply = await pool.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    return bool(reply["cursor"]["firstBatch"])


async def is_over(pool: Pool) -> bool:
    return not await is_in_progress(pool)


async def send_late(server: ConfigServer, term: Term) -> None:
    with suppress(CommandError, BackendError):
        await term.run(partial(server.sidecar.mongod.command, "left", LATE))


def test_its_unanswered_commands_end_before_it_reads_the_catalog(mongod: tuple[int, SidecarOptions]) -> None:
    pid, options = mongod

    async def main() -> None:
        server = ConfigServer(
            options, new_transport(timeouts=TIMEOUTS), Counter(), BalancerMetrics(), on_mongod_lost=lambda: None
        )
        pools = ConnectionPools(new_transport(), partial(handshake_document, "tests"))
        pool = pools[options.mongod_socket]
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pools.run)
                nursery.start_soon(server.run)
                await until(partial(is_serving, server))
                before = server.current_term
                assert before is not None
                await pool.command("admin", {"fsync": 1, "lock": True})
                try:
                    nursery.start_soon(send_late, server, before)
                    await until(partial(is_in_progress, pool))
                    with paused(pid):
                        await until(partial(has_stepped_down, server))
                    with trio.move_on_after(10):
                        await until(partial(is_over, pool))
                    assert await is_over(pool)
                finally:
                    with trio.CancelScope(shield=True):
                        await pool.command("admin", {"fsyncUnlock": 1})
                await until(partial(is_serving, server))
                after = server.current_term
                assert after is not None
                assert (after is before, after.number) == (False, before.number)
                listing = {"listCollections": 1, "filter": {"name": LATE["create"]}}
                assert not (await pool.command("left", listing))["cursor"]["firstBatch"]
                nursery.cancel_scope.cancel()

    trio.run(main)
