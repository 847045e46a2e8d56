"""The state of a config daemon: its mongod, and the term while the mongod is primary.

The first step of a new primary creates the catalog: collections, indexes and the identity of the cluster. All of it can
be repeated, and is repeated at every step-up.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
from bson.objectid import ObjectId

from shardwright.configd.balancer.balancer import Balancer, BalancerMetrics
from shardwright.configd.balancer.defragmenter import Defragmenter
from shardwright.configd.catalog.catalog import (
    Catalog,
    ChunkCensus,
    check_feature_version,
    follow_feature_version,
    write_feature_version,
)
from shardwright.configd.catalog.transactions import ChangeLog, Commands, gossip
from shardwright.configd.commands.cluster_settings import resume_user_write_block
from shardwright.configd.resharding.coordinator import resume_resharding
from shardwright.configd.term.shard_clients import ShardClients, ShardHosts, handshake
from shardwright.configd.term.term import FAIL_POINT_NAMES, RunningReshardings, Term
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Counter
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.sidecar import Sidecar, SidecarOptions
from shardwright.daemon.sidecar.term_fence import reign_of_task
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.catalog.documents import CAPPED_BYTES, INDEXES, VersionEntry
from shardwright.sharding.feature_version import EXTENSIONS, NEWEST
from shardwright.sharding.resharding_operation import ReshardingStatistics
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.transport import Transport

logger = get_logger("configd")

_DB: Final = "config"

_MAJORITY: Final = {"w": "majority"}

# Present in every MongoDB catalog, even if empty.
_PLAIN_COLLECTIONS: Final = ("collections", "databases", "settings", "version")

# Shards hold it; a config server does not.
_NOT_HERE: Final = frozenset({"system.sessions"})

_PROCESS: Final = "config"
"""The holder of the config servers' locks."""

STEP_UP_SECONDS_MAX: Final = 20.0
"""Maximum wait of a command for a new primary to initialize the catalog."""


async def initialize_catalog(mongod: Commands) -> ObjectId:
    """Create everything that the catalog lacks; returns the id of the cluster.

    Raises:
        CommandError: mongod refused, for example because it is not primary any more; or
            IncompatibleShardingConfigVersion, the catalog has another version.
        BackendError: mongod does not answer.
        UnfitClusterError: this daemon does not support the cluster's feature version.
    """
    cluster_id = await _read_cluster_id(mongod)
    await check_feature_version(mongod)
    for name, size in CAPPED_BYTES.items():
        await _create(mongod, name, {"capped": True, "size": size})
    for name in _PLAIN_COLLECTIONS:
        await _create(mongod, name, {})
    for name, indexes in INDEXES.items():
        if name not in _NOT_HERE:
            specifications = [index.to_specification() for index in indexes]
            await mongod.command(
                _DB,
                {
                    "createIndexes": name,
                    "indexes": specifications,
                    "commitQuorum": "majority",
                    "writeConcern": _MAJORITY,
                },
            )
    return cluster_id or await _write_cluster_id(mongod)


async def _create(mongod: Commands, name: str, options: dict[str, Any]) -> None:
    try:
        await mongod.command(_DB, {"create": name, **options, "writeConcern": _MAJORITY})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceExists:
            raise


async def _read_cluster_id(mongod: Commands) -> ObjectId | None:
    reply = await mongod.command(
        _DB, {"find": "version", "filter": {}, "limit": 1, "readConcern": {"level": "majority"}}
    )
    documents = reply["cursor"]["firstBatch"]
    return VersionEntry.from_document(documents[0]).cluster_id if documents else None


async def _write_cluster_id(mongod: Commands) -> ObjectId:
    """Write the version document as the last step, so that a catalog with it is complete.

    A new cluster starts with the newest feature version, because no older release has to read it.
    """
    await write_feature_version(mongod, NEWEST)
    cluster_id = ObjectId()
    insert = {
        "insert": "version",
        "documents": [VersionEntry(cluster_id).to_document()],
        "writeConcern": _MAJORITY,
    }
    reply = await mongod.command(_DB, insert)
    check_writes(reply)
    return cluster_id


class ConfigServer:
    """One member of the config servers: a mongod and the daemon in front of it.

    Attributes:
        pools: connections to the daemon's mongod, the shards and the other members.
        sidecar: presents the daemon as its mongod.
        current_term: None while the mongod is not primary or the catalog is not ready.
        fail_points: places where tests can make the daemon wait.
        census: numbers of chunks by shard, empty while the mongod is not primary.
        resharding_statistics: the counts of resharding operations that this daemon has coordinated.
    """

    def __init__(
        self,
        options: SidecarOptions,
        transport: Transport,
        conflicts: Counter,
        balancer_metrics: BalancerMetrics,
        on_mongod_lost: Callable[[], None],
    ) -> None:
        self.options = options
        self._conflicts = conflicts
        self._balancer_metrics = balancer_metrics
        self.current_term: Term | None = None
        self.fail_points = FailPoints(FAIL_POINT_NAMES)
        self.resharding_statistics = ReshardingStatistics()
        self.census = ChunkCensus()
        self.pools = ConnectionPools(transport, handshake)
        self._changed = trio.Event()
        self._initialization_error = ""
        self.sidecar = Sidecar(
            self.pools,
            mongod_socket=options.mongod_socket,
            mongod_address=options.mongod_address,
            address=options.address,
            handshake=handshake,
            on_mongod_lost=on_mongod_lost,
            cluster_role="configsvr",
            extensions=EXTENSIONS,
        )

    async def run(self) -> None:
        """Follow the mongod until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pools.run)
            nursery.start_soon(self.sidecar.run, self)
            nursery.start_soon(follow_feature_version, self.sidecar.mongod)

    @property
    def connection_string(self) -> ConnectionString:
        """The connection string of the config daemons; raises BackendError if the mongod is gone."""
        mirror = self.sidecar.mirror
        if mirror.hello is None:
            raise BackendError(self.options.mongod_socket, "is not reachable", sent=False)
        hello = mirror.present(mirror.hello)
        return ConnectionString.of_set(hello["setName"], hello["hosts"])

    async def wait_for_term(self) -> Term | None:
        """Wait for the term; None if the mongod is not primary, or not ready within `STEP_UP_SECONDS_MAX`."""
        if self.current_term is None and self.sidecar.is_primary:
            with trio.move_on_after(STEP_UP_SECONDS_MAX):
                while self.current_term is None and self.sidecar.is_primary:
                    await self._changed.wait()
        return self.current_term

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Initialize the catalog and start the tasks of a primary."""
        reign = reign_of_task()
        assert reign is not None, "declared by the caller"
        backoff = Backoff(first_seconds=0.5, seconds_max=1.0)
        cluster_id = await until_done(self._initialize_catalog, backoff, partial(self._note_failure, term))
        self._initialization_error = ""
        catalog = Catalog(self.sidecar.mongod, cluster_id, self._conflicts)
        self.census = ChunkCensus()
        mongod = self.sidecar.mongod
        shards = ShardClients(nursery, self.pools, partial(gossip, mongod), mongod.check_term_before)
        shard_hosts = ShardHosts(catalog, shards, nursery)
        nursery.start_soon(shard_hosts.follow_all)
        shown_locks = ShownLocks(catalog.update)
        shown_locks.begin(_PROCESS, term)
        self.current_term = Term(
            reign=reign,
            catalog=catalog,
            changelog=ChangeLog(self.sidecar.mongod, self.options.address),
            shards=shards,
            shard_hosts=shard_hosts,
            migrations=SingleFlight(nursery, cancelled=ErrorCode.InterruptedDueToReplStateChange),
            reshardings=RunningReshardings(nursery, self.resharding_statistics),
            user_write_blocks=SingleFlight(nursery, cancelled=ErrorCode.InterruptedDueToReplStateChange),
            shown_locks=shown_locks,
            config_servers=lambda: self.connection_string,
            fail_points=self.fail_points,
        )
        nursery.start_soon(shown_locks.run)
        nursery.start_soon(resume_resharding, self.current_term)
        nursery.start_soon(resume_user_write_block, self.current_term)
        nursery.start_soon(self.census.run, catalog)
        nursery.start_soon(Balancer(self.current_term, self._balancer_metrics).run)
        nursery.start_soon(Defragmenter(self.current_term, self._balancer_metrics).run)
        self._announce_change()
        logger.info("The catalog is ready", term=term, cluster_id=str(cluster_id))

    async def _initialize_catalog(self) -> ObjectId:
        await self.sidecar.mongod.unanswered.wait_earlier_over()
        return await initialize_catalog(self.sidecar.mongod)

    def _note_failure(self, term: int, error: BackendError | CommandError, retry_seconds: float) -> None:
        if _ends_term(error):
            # If the step-down fails, the term and the attempts continue. Otherwise their task is cancelled.
            logger.info("Lost the primary role while initializing the catalog", term=term, error=str(error))
            return
        self._initialization_error = f": {error}"
        logger.error(
            "Could not initialize the catalog", term=term, error=str(error), retry_seconds=round(retry_seconds, 3)
        )

    def on_step_down(self) -> None:
        """Interrupt the running operations."""
        if self.current_term is not None:
            self.current_term.end()
            self.current_term = None
        self.census = ChunkCensus()
        self._initialization_error = ""
        self._announce_change()

    def not_ready_reason(self) -> str | None:
        """Explain why clients cannot be served at the moment; None if they can."""
        reason = self.sidecar.not_ready_reason()
        if reason is not None:
            return reason
        if self.sidecar.is_primary and self.current_term is None:
            return f"the catalog is being initialized{self._initialization_error}"
        return None

    def operations(self) -> list[dict[str, Any]]:
        """Return the daemon's own operations for ``currentOp``."""
        return [] if self.current_term is None else self.current_term.reshardings.operations()

    def monitors(self) -> list[ReplicaSetMonitor]:
        """Return the monitors of the shards; only a primary has them."""
        return [] if self.current_term is None else self.current_term.shards.monitors()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _ends_term(error: CommandError | BackendError) -> bool:
    """Whether an error comes from a step-down or a shutdown of the mongod, and not from the catalog."""
    return isinstance(error, BackendError) or any(
        has_category(error.code, category) for category in (Category.NOT_PRIMARY, Category.SHUTDOWN)
    )
