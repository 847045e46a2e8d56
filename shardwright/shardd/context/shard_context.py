"""State shared by all components of a shard daemon: its mongod, namespace states, and requests to the cluster.

`ShardContext` has the state. The functions send what coordinators and donors need from the rest of the cluster:
commands to shards, including this one, and changelog entries. A change that must not use a stale routing table
refreshes it first (`refreshed_table`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import trio
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.daemon.sidecar.noop_writer import wait_for_majority
from shardwright.daemon.sidecar.sidecar import Sidecar, SidecarOptions
from shardwright.shardd.context.ddl_locks import DDLLocks, IndexCreations
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.exchange.remote_sets import IDENTITY_ID, Catalog, ConfigTimes, RemoteSets, ShardIdentity
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.metadata.critical_sections import RecoveryGate
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.metadata_store import MetadataStore, MetadataWriter
from shardwright.shardd.metadata.namespace_state import NamespaceState, StateTable
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.metadata.views import Views
from shardwright.shardd.orphans.open_cursors import OpenCursors
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTasks
from shardwright.sharding import feature_version
from shardwright.sharding.catalog.documents import ChangeLogEntry
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.cluster_time import ACKNOWLEDGED_TIME
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.transaction_protocol import CLIENT_SESSION, MAY_CHANGE_OWNER
from shardwright.sharding.versions import IGNORED, stale_config
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client import handshake_document
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.reactor import may_run_in_reactor
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.transport import Transport

logger = get_logger("shardd.context")

_EXTENSIONS: Final = (INVOLVED_NAMESPACES, MAY_CHANGE_OWNER, ACKNOWLEDGED_TIME, CLIENT_SESSION)

_UNINITIALIZED: Final = (
    "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document"
)

Answer = TypeVar("Answer")


class ShardContext:
    """The context of one shard daemon. It is created first, and does not depend on the components that use it.

    Args:
        nursery: for tasks that live as long as the daemon.
        on_mongod_lost: see `Sidecar`.
        more_extensions: extensions to announce that depend on options.

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
        self,
        options: SidecarOptions,
        transport: Transport,
        metrics: Metrics,
        nursery: trio.Nursery,
        on_mongod_lost: Callable[[], None],
        more_extensions: Sequence[str] = (),
    ) -> None:
        self.options = options
        self.metrics = metrics
        self.identity: ShardIdentity | None = None
        self._identified = trio.Event()
        self._catalog: Catalog | None = None
        self._nursery = nursery
        self.pools = ConnectionPools(transport, handshake)
        self._sets = RemoteSets(self.pools, handshake, nursery)
        self.sidecar = Sidecar(
            self.pools,
            mongod_socket=options.mongod_socket,
            mongod_address=options.mongod_address,
            address=options.address,
            handshake=handshake,
            on_mongod_lost=on_mongod_lost,
            cluster_role="shardsvr",
            extensions=(*map(bytes.decode, _EXTENSIONS), *feature_version.EXTENSIONS, *more_extensions),
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

    def monitors(self) -> list[ReplicaSetMonitor]:
        """Return the monitors of the config servers and other shards that this daemon has contacted."""
        return self._sets.monitors()

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


async def log_change(
    context: ShardContext, what: str, namespace: str, details: Mapping[str, Any] | None = None
) -> None:
    """Insert an entry into ``config.changelog``; a failure is only logged, because the change does not depend on it."""
    now = datetime.now(UTC).replace(tzinfo=None)
    entry = ChangeLogEntry(
        id=ChangeLogEntry.make_id(context.options.address, now, ObjectId()),
        server=context.options.address,
        shard=context.require_identity().shard_name,
        client_address="",
        time=now,
        what=what,
        namespace=namespace,
        details=details or {},
    )
    logger.info("Writing to the changelog", what=what, namespace=namespace)
    try:
        catalog = await context.catalog()
        await catalog.command({"insert": "changelog", "documents": [entry.to_document()]}, db="config")
    except CommandError as error:
        logger.warning("Could not write to the changelog", what=what, namespace=namespace, error=str(error))


async def refreshed_table(context: ShardContext, namespace: Namespace, epoch: ObjectId) -> RoutingTable:
    """Return a collection's refreshed routing table.

    Raises NamespaceNotSharded, or StaleConfig if the request is for another incarnation of the collection.
    """
    state = context.namespace(str(namespace))
    table = await context.refresher.current_table(state)
    if table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded")
    if table.collection.epoch != epoch:
        # The request has an epoch but no version to report as received.
        raise stale_config(
            str(namespace),
            IGNORED,
            table.shard_version(state.shard),
            state.shard,
            f"Collection {namespace} changed: its epoch is {table.collection.epoch}, the request's {epoch}",
            may_shard_be_stale=False,
        )
    return table


async def send_to_shard(
    context: ShardContext, shard_id: str, db: str, command: Mapping[str, Any], *, may_be_cached: bool = False
) -> dict[str, Any]:
    """Run an idempotent command on the primary of a shard.

    Args:
        shard_id: the shard, which may be this one.
        may_be_cached: whether hosts read earlier in this term will do.

    Raises:
        CommandError: HostUnreachable, ShardNotFound, or the shard's error.
    """
    client = await context.shard_client(shard_id, may_be_cached=may_be_cached)
    try:
        reply = await client.command(db, {**command, **context.config_times.gossip()})
    except BackendError as error:
        raise CommandError(ErrorCode.HostUnreachable, f"could not reach shard {shard_id}: {error}") from error
    context.config_times.observe_reply(reply)
    return reply


async def send_to_shards(
    context: ShardContext, shard_ids: Iterable[str], db: str, command: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run a command on several shards concurrently; return the replies by shard id.

    All shards are sent the command. If any failed, the error of the one with the lowest id is raised.
    """
    replies: dict[str, dict[str, Any]] = {}
    errors: dict[str, CommandError] = {}

    async def send(shard_id: str) -> None:
        try:
            replies[shard_id] = await send_to_shard(context, shard_id, db, command)
        except CommandError as error:
            errors[shard_id] = error

    async with trio.open_nursery() as nursery:
        for shard_id in shard_ids:
            nursery.start_soon(send, shard_id)
    for shard_id in sorted(errors):
        raise errors[shard_id]
    return replies


async def send_to_other_shards(context: ShardContext, db: str, command: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Run a command on all other shards of the cluster; see `send_to_shards`."""
    me = context.require_identity().shard_name
    return await send_to_shards(context, [each for each in await all_shard_ids(context) if each != me], db, command)


async def by_hosts(context: ShardContext, answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return shards' answers by their hosts instead of their ids, as in ``raw``.

    The shards are read after the answers, because a shard may have been added since. A removed shard keeps its id.
    """
    shards = await (await context.catalog()).shards()
    return {shards[each].host if each in shards else each: answers[each] for each in sorted(answers)}


async def all_shard_ids(context: ShardContext) -> list[str]:
    """Return the ids of all shards of the cluster, sorted."""
    catalog = await context.catalog()
    return sorted(await catalog.shards())
