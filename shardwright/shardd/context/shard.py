"""The shared state of a shard daemon: what all operations and commands of this process work with."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.logs import get_logger
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.options import SidecarOptions
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.sidecar.term_fence import TermFence
from shardwright.shardd.cluster.catalog import Catalog
from shardwright.shardd.cluster.config_times import ConfigTimes
from shardwright.shardd.cluster.identity import IDENTITY_ID, ShardIdentity
from shardwright.shardd.cluster.remote_sets import RemoteSets
from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.metadata.cache_watch import CacheWatch
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.metadata_store import MetadataStore
from shardwright.shardd.metadata.metadata_writer import MetadataWriter
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.recovery_gate import RecoveryGate
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.metadata.state_table import StateTable
from shardwright.shardd.metadata.views import Views
from shardwright.shardd.orphans.former_cursors import FormerCursors
from shardwright.shardd.orphans.older_cursors import OlderCursors
from shardwright.shardd.shard_key_updates.update_preview import UpdatePreviews
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.client import Connection, handshake_document
from shardwright.wire.transport.pools import ConnectionPools
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.request_loop import may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.shardd.ddl.coordinators.service import CoordinatorService
    from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
    from shardwright.shardd.migration.migrations import Migrations
    from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
    from shardwright.shardd.session_history.table import HistoryTable

logger = get_logger("shardd.shard")

_RECOVERY_RETRY_SECONDS: Final = 0.2
_UNINITIALIZED: Final = (
    "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document"
)


class Shard:
    """One shard daemon.

    Args:
        options: how it was started.
        metrics: what it measures.
        nursery: for tasks that live as long as the daemon.
        assemble: sets the components named below, which need the shard to be made.
        on_mongod_lost: see `Sidecar`.

    Attributes:
        identity: which shard this is, None until it has been added to a cluster.
        namespaces: the state of each namespace that was asked for.
        databases: the state of each database that was asked for.
        fail_points: places at which tests make the daemon wait or fail.
        config_times: up to where the catalog has come, as far as this shard knows.
        recovery_gate: holds writes back until what a former primary has begun is known.
        reserved_sessions: write documents so that users' change streams do not show it.
        history_table: retryable writes that were executed by the former owners of ranges.
        older_cursors: cursors that are older than a range that came in.
        former_cursors: cursors that are older than this process.
        range_deletions: ranges whose documents are, or may become, orphans.
        migrations: ranges on their way to or from another shard.
        coordinators: changes of several steps that are no migrations.
    """

    reserved_sessions: "ReservedSessions"
    history_table: "HistoryTable"
    range_deletions: "RangeDeletions"
    migrations: "Migrations"
    coordinators: "CoordinatorService"

    def __init__(
        self,
        options: SidecarOptions,
        metrics: Metrics,
        nursery: trio.Nursery,
        assemble: Callable[["Shard"], None],
        on_mongod_lost: Callable[[], None],
    ) -> None:
        self.options = options
        self.metrics = metrics
        self.identity: ShardIdentity | None = None
        self._identified = trio.Event()
        self.namespaces: StateTable[NamespaceState] = StateTable(self._make_namespace)
        self.databases: StateTable[DatabaseState] = StateTable(DatabaseState)
        self._nursery = nursery
        self.pools = ConnectionPools(_handshake)
        self.sets = RemoteSets(self.pools, _handshake, nursery)
        self.sidecar = Sidecar(
            self.pools,
            mongod_socket=options.mongod_socket,
            mongod_address=options.mongod_address,
            address=options.address,
            handshake=_handshake,
            hooks=self,
            on_mongod_lost=on_mongod_lost,
            extensions=(INVOLVED_NAMESPACES.decode(),),
        )
        self.mongod = self.sidecar.mongod
        self.fence = self.mongod.fence = TermFence(self.mongod)
        self.config_times = ConfigTimes(self.mongod)
        self.older_cursors = OlderCursors(self.mongod)
        self.former_cursors = FormerCursors(self.mongod)
        self.previews = UpdatePreviews(self.mongod)
        self.store = MetadataStore(self.mongod)
        self.writer = MetadataWriter(self.store)
        self.refresher = MetadataRefresher(
            self,
            self.store,
            self.writer,
            nursery,
            metrics.labelled_counter("refreshes", "Refreshes of what the shard knows of the catalog", "kind"),
        )
        self.views = Views(self.mongod, lambda: self.sidecar.is_primary)
        self._cache_watch = CacheWatch(
            self.sidecar.mirror,
            partial(Connection.open, options.mongod_socket, handshake=_handshake()),
            on_collection=self._on_cached_collection,
            on_database=self._on_cached_database,
            on_range_deletion=lambda entry: self.range_deletions.observe(entry),
            on_gap=self._on_missed_changes,
        )
        self.ddl_locks = DDLLocks()
        self.fail_points = FailPoints(FAIL_POINT_NAMES)
        self.recovery_gate = RecoveryGate(lambda: self.sidecar.is_primary)
        assemble(self)
        self._catalog: Catalog | None = None

    def start(self) -> None:
        """Start the tasks that live as long as the daemon."""
        self._nursery.start_soon(self.pools.run)
        self._nursery.start_soon(self.sidecar.run)
        self._nursery.start_soon(self._cache_watch.run)
        self._nursery.start_soon(self.former_cursors.end)

    # Role

    @property
    def is_primary(self) -> bool:
        """Whether the local mongod is primary."""
        return self.sidecar.is_primary

    @property
    def term(self) -> int | None:
        """The term in which the local mongod is primary, None when it is not."""
        return self.sidecar.term

    async def on_step_up(self, term: int, nursery: trio.Nursery) -> None:
        """Begin as primary with nothing but what is persisted, and finish what a former primary has begun."""
        self._forget_metadata()
        self.sidecar.certainty.settle(term)
        nursery.start_soon(self.writer.run)
        nursery.start_soon(self.fence.keep)
        while True:
            try:
                if await self.find_identity() is not None:
                    await self._begin_term(term, nursery)
                    return
            except (BackendError, CommandError) as error:
                logger.warning("Could not recover what was under way", term=term, error=str(error))
                await trio.sleep(_RECOVERY_RETRY_SECONDS)
            else:
                await self._identified.wait()

    async def _begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Take over from the last primary, each component after those that it works with."""
        await self.fence.begin(term)
        await self.mongod.unanswered.wait_earlier_over(term)
        await self.config_times.recover()
        await self.range_deletions.begin_term(nursery)
        await self.history_table.begin_term(nursery)
        await self.migrations.begin_term(nursery)
        await self.previews.transactions.end_forgotten()
        self.recovery_gate.open()
        await self.coordinators.begin_term(nursery)

    def on_step_down(self) -> None:
        """What this primary knew is for its successor to say now."""
        self.recovery_gate.close()
        self.fence.end()
        self.coordinators.end_term()
        self.migrations.end_term()
        self.history_table.end_term()
        self.range_deletions.end_term()
        self._forget_metadata()

    def forget_database(self, db: str) -> None:
        """What is known of a database and its collections is no longer to be trusted."""
        self.database(db).forget()
        for state in self.namespaces:
            if state.namespace.partition(".")[0] == db:
                state.forget()

    def _on_cached_collection(self, namespace: str) -> None:
        state = self.namespaces.find(namespace)
        if state is not None:
            state.forget()

    def _on_cached_database(self, db: str) -> None:
        state = self.databases.find(db)
        if state is not None:
            state.forget()

    async def _on_missed_changes(self) -> None:
        await self.range_deletions.observe_gap()
        self._forget_metadata()

    def _forget_metadata(self) -> None:
        if self._catalog is not None:
            self._catalog.knows_shards = False
        self.views.forget()
        for state in self.namespaces:
            state.forget()
            state.release()
        for database in self.databases:
            database.forget()

    # States

    def namespace(self, name: str) -> NamespaceState:
        """The state of a namespace, made when first asked for."""
        return self.namespaces[name]

    def _make_namespace(self, name: str) -> NamespaceState:
        state = NamespaceState(name, self.require_identity().shard_name)
        state.set_range_deletions(self.range_deletions.tasks_of(name))
        return state

    def database(self, name: str) -> DatabaseState:
        """The state of a database, made when first asked for."""
        return self.databases[name]

    # Identity

    def require_identity(self) -> ShardIdentity:
        """Which shard this is.

        Raises:
            CommandError: ShardingStateNotInitialized, none yet.
        """
        if self.identity is None:
            raise CommandError(ErrorCode.ShardingStateNotInitialized, _UNINITIALIZED)
        return self.identity

    @may_run_in_reactor
    async def load_identity(self) -> ShardIdentity:
        """Which shard this is, reading it from the mongod if it is not known yet.

        Raises:
            CommandError: ShardingStateNotInitialized, none yet.
        """
        await self.find_identity()
        return self.require_identity()

    @may_run_in_reactor
    async def find_identity(self) -> ShardIdentity | None:
        """Which shard this is, None if none yet, reading it from the mongod if it is not known."""
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
        """From now on this daemon is one of this shard."""
        if self.identity != identity:
            self.identity = identity
            self._catalog = None
            self._identified.set()
            logger.info("Is a shard", shard=identity.shard_name, configdb=identity.config_string)

    # Others

    async def catalog(self) -> Catalog:
        """The config servers.

        Raises:
            CommandError: ShardingStateNotInitialized, this is not a shard yet.
        """
        identity = await self.load_identity()
        if self._catalog is None:
            self._catalog = Catalog(self.sets[identity.config_string], self._nursery, self.config_times)
        return self._catalog

    async def shard_client(self, shard_id: str) -> ReplicaSetClient:
        """A client of another shard, or of this one.

        Raises:
            CommandError: ShardNotFound.
        """
        catalog = await self.catalog()
        entry = (await catalog.shards()).get(shard_id)
        if entry is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return self.sets[entry.host]

    async def wait_majority(self) -> None:
        """Return once a majority of the set has what the local mongod has now.

        Raises:
            CommandError: WriteConcernFailed, not in time, or mongod is not primary.
        """
        note = {"appendOplogNote": 1, "data": {"msg": "wait for majority"}, "writeConcern": MAJORITY}
        reply = await self.mongod.command("admin", note)
        if "writeConcernError" in reply:
            raise CommandError.from_reply(reply["writeConcernError"])

    async def placement_time(self, other: Mapping[str, Any] | None = None) -> Timestamp:
        """A time from which a change of placement counts: after the present of this shard and of the config servers.

        The config servers' time passes that of every shard that asks, so that changes which shards make one after the
        other have times in that order.

        Args:
            other: a ``$clusterTime`` of another shard, which the time has to come after too.

        Raises:
            CommandError: the config servers could not be asked.
        """
        pong = await self.mongod.command("admin", {"ping": 1})
        times = [pong["$clusterTime"], *([] if other is None else [other])]
        latest = max(times, key=lambda each: each["clusterTime"])
        # A change of placement is committed on the same primary after this, on a majority, or not at all.
        return await (await self.catalog()).new_timestamp(latest, write_concern={"w": 1})

    async def advance_cluster_time(self, time: Timestamp) -> None:
        """Have the local mongod give what it writes from now on later times than this one.

        Raises:
            CommandError: mongod refuses the time.
            BackendError: mongod does not answer.
        """
        await self.mongod.command("admin", {"ping": 1, "$clusterTime": signed_cluster_time(time)})

    async def ask_primary(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run an admin command on the daemon of its set's primary.

        Raises:
            CommandError: there is no primary, it can't be reached, or what it answered.
        """
        hello = self.sidecar.mirror.hello or {}
        address = self.sidecar.mirror.sidecars.get(hello.get("primary", ""))
        if address is None:
            raise CommandError(ErrorCode.NotPrimaryNoSecondaryOk, "the shard has no primary at the moment")
        try:
            return await self.pools[address].command("admin", command)
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"could not reach the shard's primary: {error}") from error


def _handshake() -> dict[str, Any]:
    return handshake_document("shardwright-shardd")
