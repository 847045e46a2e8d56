"""The config daemon's commands run inside the test, on a real mongod with injected failures."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import bson
import trio

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import ChangeLog, Commands, gossip
from shardwright.configd.config_server import initialize_catalog
from shardwright.configd.service import run_config_command
from shardwright.configd.term.shard_clients import ShardClients, ShardHosts, handshake
from shardwright.configd.term.term import FAIL_POINT_NAMES, RunningReshardings, Term
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.term_fence import Reign
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.resharding_operation import ReshardingStatistics
from shardwright.wire.errors import BackendError
from shardwright.wire.frames import next_request_id
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.pool import ConnectionPools
from tests.configd.catalog_user import MAJORITY
from tests.shardd.mini_cluster import Set
from tests.transports import new_transport

WRITES = frozenset({"applyOps", "insert", "update", "delete", "create", "createIndexes"})


@dataclass
class Fault:
    """A failure of mongod at the given write: before it is executed, or after it was executed but not acknowledged."""

    write: int
    is_made: bool


class FaultyMongod:
    """Passes commands on to a mongod; counts writes, and loses the connection at one of them if there is a fault.

    Attributes:
        writes: their number.
        fault: at which of them the connection is lost.
        before_write: called before the next write, once.
        lost: the collection of the write at which it failed.
    """

    def __init__(self, mongod: Commands) -> None:
        self._mongod = mongod
        self.writes = 0
        self.fault: Fault | None = None
        self.before_write: Callable[[], object] = _nothing
        self.lost: object = None

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command unless the fault prevents it."""
        if next(iter(command)) not in WRITES:
            return await self._mongod.command(db, command)
        self.before_write, before = _nothing, self.before_write
        before()
        self.writes += 1
        if self.fault is None or self.fault.write != self.writes:
            return await self._mongod.command(db, command)
        self.lost = next(iter(command.values()))
        if self.fault.is_made:
            await self._mongod.command(db, command)
        raise BackendError("mongod", "the connection was lost", sent=self.fault.is_made)


def _nothing() -> None:
    """Nothing happens before a write."""


class InProcess:
    """A primary config daemon without its process.

    Attributes:
        mongod: runs its commands.
        term: its term.
    """

    def __init__(self, mongod: FaultyMongod, term: Term) -> None:
        self.mongod = mongod
        self.term = term

    async def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a command.

        Raises:
            CommandError: it failed.
        """
        return await self.run_bare({**command, "writeConcern": MAJORITY})

    async def run_bare(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, without a write concern."""
        body = bson.encode({**command, "$db": "admin"})
        request = Request(OpMsg(op_msg(body, request_id=next_request_id())))
        return await run_config_command(request, "127.0.0.1:1", self._wait_for_term)

    async def _wait_for_term(self) -> Term:
        return self.term


def _plain(pools: ConnectionPools, socket_path: str) -> Commands:
    return pools[socket_path]


@asynccontextmanager
async def in_process(
    config_set: Set, term: int = 1, local_mongod: Callable[[ConnectionPools, str], Commands] = _plain
) -> AsyncIterator[InProcess]:
    """Run the config daemon's commands on the mongod of a running set.

    Args:
        config_set: the set.
        term: the term that the daemon assumes for its primary mongod.
        local_mongod: builds the command runner from the daemon's pools and the mongod's socket.
    """
    arguments = config_set.members[0].daemon.arguments
    socket_path = arguments[arguments.index("--mongod-socket") + 1]
    pools = ConnectionPools(new_transport(), handshake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pools.run)
        mongod = FaultyMongod(local_mongod(pools, socket_path))
        cluster_id = await initialize_catalog(pools[socket_path])
        catalog = Catalog(mongod, cluster_id)
        shards = ShardClients(nursery, pools, partial(gossip, mongod), trio.lowlevel.checkpoint)
        resources = Term(
            reign=Reign(term, 1),
            catalog=catalog,
            changelog=ChangeLog(mongod, "in-process:1"),
            shards=shards,
            shard_hosts=ShardHosts(catalog, shards, nursery),
            migrations=SingleFlight(nursery),
            reshardings=RunningReshardings(nursery, ReshardingStatistics()),
            user_write_blocks=SingleFlight(nursery),
            shown_locks=ShownLocks(catalog.update),
            config_servers=lambda: ConnectionString.parse(config_set.connection_string),
            fail_points=FailPoints(FAIL_POINT_NAMES),
        )
        yield InProcess(mongod, resources)
        nursery.cancel_scope.cancel()
