"""State shared by all components of a shard daemon: its mongod, namespace states, connections to the cluster."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.oplog_note import wait_for_majority
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.options import SidecarOptions
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.shardd.cluster.catalog import Catalog
from shardwright.shardd.cluster.config_times import ConfigTimes
from shardwright.shardd.cluster.identity import IDENTITY_ID, ShardIdentity
from shardwright.shardd.cluster.remote_sets import RemoteSets
from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.context.index_creations import IndexCreations
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.metadata_store import MetadataStore, MetadataWriter
from shardwright.shardd.metadata.namespace_state import NamespaceState, StateTable
from shardwright.shardd.metadata.recovery_gate import RecoveryGate
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.metadata.views import Views
from shardwright.shardd.orphans.open_cursors import OpenCursors
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTasks
from shardwright.sharding import feature_version
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.operation_session import CLIENT_SESSION
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER
from shardwright.sharding.received_time import ACKNOWLEDGED_TIME
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.request_loop import may_run_in_reactor

logger = get_logger("shardd.context")

_EXTENSIONS: Final = (INVOLVED_NAMESPACES, MAY_CHANGE_OWNER, ACKNOWLEDGED_TIME, CLIENT_SESSION)

_UNINITIALIZED: Final = (
    "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document"
)


class ShardContext:
    """The context of one shard daemon. It is created first, and does not depend on the components that use it.

    Args:
        nursery: for tasks that live as long as the daemon.
        on_mongod_lost: see `Sidecar`.

    Attributes:
        identity: the shard's identity; None until it is known, or until the set has been added to a cluster.
        sidecar: answers hello in place of the mongod, and tracks its role.
        range_deletion_tasks: the ranges of each namespace that may hold orphans.
        open_cursors: the cursors of clients on the local mongod.
        recovery_gate: blocks operations until the unfinished work of earlier terms has been recovered.
        store: the persisted part of the catalog.
        shown_locks: publishes the DDL locks in the catalog.
    """

    def __init__(
        self, options: SidecarOptions, metrics: Metrics, nursery: trio.Nursery, on_mongod_lost: Callable[[], None]
    ) -> None:
        self.options = options
        self.metrics = metrics
        self.identity: ShardIdentity | None = None
        self._identified = trio.Event()
        self._catalog: Catalog | None = None
        self._nursery = nursery
        self.pools = ConnectionPools(handshake)
        self._sets = RemoteSets(self.pools, handshake, nursery)
        self.sidecar = Sidecar(
            self.pools,
            mongod_socket=options.mongod_socket,
            mongod_address=options.mongod_address,
            address=options.address,
            handshake=handshake,
            on_mongod_lost=on_mongod_lost,
            cluster_role="shardsvr",
            extensions=(*map(bytes.decode, _EXTENSIONS), *feature_version.EXTENSIONS),
        )
        self.mongod = self.sidecar.mongod
        self.open_cursors = OpenCursors(self.mongod)
        self.range_deletion_tasks = RangeDeletionTasks(self._on_range_deletions)
        self.namespaces: StateTable[NamespaceState] = StateTable(self._make_namespace)
        self.databases: StateTable[DatabaseState] = StateTable(DatabaseState)
        self.config_times = ConfigTimes(self.mongod)
        self.recovery_gate = RecoveryGate(lambda: self.sidecar.is_primary)
        self.store = MetadataStore(self.mongod)
        self.writer = MetadataWriter(self.store)
        refreshes = metrics.labelled_counter(
            "refreshes", "Refreshes of the shard's metadata from the catalog", "kind", ("collection", "database")
        )
        self.refresher = MetadataRefresher(self, self.store, self.writer, nursery, refreshes)
        self.views = Views(self.mongod, lambda: self.sidecar.is_primary)
        self.ddl_locks = DDLLocks()
        self.index_creations = IndexCreations(self.databases)
        self.shown_locks = ShownLocks(self._update_catalog)
        self.fail_points = FailPoints(FAIL_POINT_NAMES)

    # Role

    @property
    def is_primary(self) -> bool:
        """Whether the local mongod is primary."""
        return self.sidecar.is_primary

    @property
    def term(self) -> int | None:
        """The term in which the local mongod is primary; None if it is not."""
        return self.sidecar.term

    def forget_database(self, db: str) -> None:
        """Drop the cached metadata of a database and its collections."""
        self.database(db).forget()
        for state in self.namespaces:
            if state.namespace.partition(".")[0] == db:
                state.forget()

    def forget_metadata(self) -> None:
        """Drop the cached metadata of all namespaces and databases, and end their critical sections."""
        if self._catalog is not None:
            self._catalog.knows_shards = False
        self.views.forget()
        for state in self.namespaces:
            state.forget()
            state.release()
        for database in self.databases:
            database.forget()
            database.release()

    # States

    def namespace(self, name: str) -> NamespaceState:
        """Return the state of a namespace, created if it does not exist."""
        return self.namespaces[name]

    def _make_namespace(self, name: str) -> NamespaceState:
        state = NamespaceState(name, self.require_identity().shard_name)
        state.set_range_deletions(self.range_deletion_tasks.of(name))
        return state

    def _on_range_deletions(self, namespace: str) -> None:
        state = self.namespaces.find(namespace)
        if state is not None:
            state.set_range_deletions(self.range_deletion_tasks.of(namespace))

    def database(self, name: str) -> DatabaseState:
        """Return the state of a database, created if it does not exist."""
        return self.databases[name]

    # Identity

    def require_identity(self) -> ShardIdentity:
        """Return the shard's identity, or raise ShardingStateNotInitialized if it is not known."""
        if self.identity is None:
            raise CommandError(ErrorCode.ShardingStateNotInitialized, _UNINITIALIZED)
        return self.identity

    @may_run_in_reactor
    async def load_identity(self) -> ShardIdentity:
        """Return the shard's identity, read from mongod if it is not cached, or raise ShardingStateNotInitialized."""
        await self.find_identity()
        return self.require_identity()

    @may_run_in_reactor
    async def find_identity(self) -> ShardIdentity | None:
        """Return the shard's identity, read from mongod if it is not cached; None if there is none."""
        if self.identity is None:
            find = {
                "find": "system.version",
                "filter": {"_id": IDENTITY_ID},
                "$readPreference": {"mode": "nearest"},
            }
            reply = await self.mongod.command("admin", find)
            for document in reply["cursor"]["firstBatch"]:
                self.adopt_identity(ShardIdentity.from_document(document))
        return self.identity

    def adopt_identity(self, identity: ShardIdentity) -> None:
        """Set the shard's identity."""
        if self.identity != identity:
            self.identity = identity
            self._catalog = None
            self._identified.set()
            logger.info("Adopted a shard identity", shard=identity.shard_name, configdb=identity.config_string)

    async def wait_identified(self) -> None:
        """Return when the shard's identity is known."""
        while await self.find_identity() is None:
            await self._identified.wait()

    # Other servers

    async def catalog(self) -> Catalog:
        """Return the client of the config servers, or raise ShardingStateNotInitialized."""
        identity = await self.load_identity()
        if self._catalog is None:
            self._catalog = Catalog(self._sets[identity.config_servers], self._nursery, self.config_times)
        return self._catalog

    async def _update_catalog(self, collection: str, statements: Sequence[Mapping[str, Any]]) -> None:
        update = {"update": collection, "updates": statements, "writeConcern": MAJORITY}
        reply = await (await self.catalog()).command(update, db="config")
        check_writes(reply)

    async def shard_client(self, shard_id: str, *, may_be_cached: bool = False) -> ReplicaSetClient:
        """Return the client of a shard, which may be this one.

        Args:
            may_be_cached: whether hosts read earlier in this term will do.

        Raises:
            CommandError: ShardNotFound; FailedToParse, its entry names no hosts.
        """
        catalog = await self.catalog()
        entry = await catalog.shard_entry(shard_id, may_be_cached=may_be_cached)
        if entry is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return self._sets.of_shard(entry)

    async def wait_majority(self) -> None:
        """Return when a majority of the set has everything that the local mongod has now.

        Raises WriteConcernFailed if the wait timed out.
        """
        await wait_for_majority(self.mongod.command)

    async def placement_time(self, other: Mapping[str, Any] | None = None) -> Timestamp:
        """Return a time for a placement change, later than the current times of this shard and of the config servers.

        The config servers' time advances past every requesting shard's time, so successive changes by different shards
        have ascending times.

        Args:
            other: another shard's ``$clusterTime`` that the time has to come after too.
        """
        pong = await self.mongod.command("admin", {"ping": 1})
        times = [pong["$clusterTime"], *([] if other is None else [other])]
        latest = max(times, key=lambda each: each["clusterTime"])
        # The placement change commits after this on the same primary, on a majority or not at all.
        return await (await self.catalog()).new_timestamp(latest, write_concern={"w": 1})

    async def advance_cluster_time(self, time: Timestamp) -> None:
        """Advance the local mongod's clock, so that its later writes have later times than this one."""
        await self.mongod.command("admin", {"ping": 1, "$clusterTime": signed_cluster_time(time)})

    async def ask_primary(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run an admin command on the primary's daemon, or raise NotPrimaryNoSecondaryOk without a primary."""
        mirror = self.sidecar.mirror
        primary = (mirror.hello or {}).get("primary", "")
        address = mirror.sidecars.get(primary)
        if address is None:
            raise CommandError(ErrorCode.NotPrimaryNoSecondaryOk, "the shard has no primary at the moment")
        try:
            return await mirror.while_primary(primary, partial(self.pools[address].command, "admin", command))
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"could not reach the shard's primary: {error}") from error


def handshake() -> dict[str, Any]:
    """Return the hello with which this daemon opens connections."""
    return handshake_document("shardwright-shardd")
