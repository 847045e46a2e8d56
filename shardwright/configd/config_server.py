"""The state of a config daemon: its mongod, and the term while the mongod is primary."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
from bson.objectid import ObjectId

from shardwright.configd.balancer.balancer import Balancer
from shardwright.configd.balancer.defragmentation.run import Defragmenter
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.catalog.catalog import Catalog, ChunkCensus
from shardwright.configd.catalog.changelog import ChangeLog
from shardwright.configd.catalog.feature_version import read_feature_version
from shardwright.configd.catalog.initialization import initialize_catalog
from shardwright.configd.catalog.transactions import gossip
from shardwright.configd.resharding.running import resume_resharding
from shardwright.configd.shards.shard_clients import ShardClients, handshake
from shardwright.configd.shards.shard_hosts import ShardHosts
from shardwright.configd.term.running_reshardings import RunningReshardings
from shardwright.configd.term.term import FAIL_POINT_NAMES, Term
from shardwright.configd.user_writes.coordinator import resume_user_write_block
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Counter
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.options import SidecarOptions
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.feature_version import EXTENSIONS
from shardwright.sharding.resharding.statistics import ReshardingStatistics
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.pools import ConnectionPools

logger = get_logger("configd")

_PROCESS: Final = "config"
"""The holder of the config servers' locks."""

STEP_UP_SECONDS_MAX: Final = 20.0
"""Maximum wait of a command for a new primary to initialize the catalog."""


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
        self.pools = ConnectionPools(handshake)
        self._changed = trio.Event()
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
            nursery.start_soon(self._check_feature_version)

    async def _check_feature_version(self) -> None:
        """End a daemon that does not support the cluster's feature version before its mongod becomes primary."""

        async def read() -> None:
            await read_feature_version(self.sidecar.mongod, may_be_secondary=True)

        # A new set may not have elected its first primary yet, or the mongod is still starting.
        await until_done(read, Backoff(first_seconds=0.1, seconds_max=1.0), _note_unread)

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
        backoff = Backoff(first_seconds=0.5, seconds_max=1.0)
        cluster_id = await until_done(partial(self._initialize_catalog, term), backoff, partial(_log_failure, term))
        catalog = Catalog(self.sidecar.mongod, cluster_id, self._conflicts)
        self.census = ChunkCensus()
        mongod = self.sidecar.mongod
        shards = ShardClients(nursery, self.pools, partial(gossip, mongod), mongod.check_term_before)
        shard_hosts = ShardHosts(catalog, shards, nursery)
        nursery.start_soon(shard_hosts.follow_all)
        shown_locks = ShownLocks(catalog.update)
        shown_locks.begin(_PROCESS, term)
        self.current_term = Term(
            number=term,
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

    async def _initialize_catalog(self, term: int) -> ObjectId:
        await self.sidecar.mongod.unanswered.wait_earlier_over(term)
        return await initialize_catalog(self.sidecar.mongod)

    def on_step_down(self) -> None:
        """Interrupt the running operations."""
        if self.current_term is not None:
            self.current_term.end()
            self.current_term = None
        self.census = ChunkCensus()
        self._announce_change()

    def not_ready_reason(self) -> str | None:
        """Explain why clients cannot be served at the moment; None if they can."""
        reason = self.sidecar.not_ready_reason()
        if reason is not None:
            return reason
        if self.sidecar.is_primary and self.current_term is None:
            return "the catalog is being initialized"
        return None

    def operations(self) -> list[dict[str, Any]]:
        """Return the daemon's own operations for ``currentOp``."""
        return [] if self.current_term is None else self.current_term.reshardings.operations()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _log_failure(term: int, error: BackendError | CommandError, retry_seconds: float) -> None:
    if _ends_term(error):
        # If the step-down fails, the term and the attempts continue. Otherwise the task of the attempts is cancelled.
        logger.info("Lost the primary role while initializing the catalog", term=term, error=str(error))
    else:
        logger.error(
            "Could not initialize the catalog", term=term, error=str(error), retry_seconds=round(retry_seconds, 3)
        )


def _note_unread(error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.debug("Could not read the feature version", error=str(error), retry_seconds=round(retry_seconds, 3))


def _ends_term(error: CommandError | BackendError) -> bool:
    """Whether an error comes from a step-down or a shutdown of the mongod, and not from the catalog."""
    return isinstance(error, BackendError) or any(
        has_category(error.code, category) for category in (Category.NOT_PRIMARY, Category.SHUTDOWN)
    )
