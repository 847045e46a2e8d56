"""The routing cache: databases with their primary shards, and collections with their routing tables.

An entry is read when it is first needed, and again after a shard has refused it as stale. A stale entry is evicted only
while it is still in the cache. So if a thousand clients use it, one causes the refresh, and the others wait for it or
find it done.

Methods that read raise CommandError if the config servers do not answer.
"""

from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.single_flight import SingleFlight
from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.sharding.catalog.reads import read_database, read_routing
from shardwright.sharding.logical_sessions import NAMESPACE as SESSIONS
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import buckets_of
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.passages import EPOCH
from shardwright.wire.request import check_database_name
from shardwright.wire.transport.reactor import may_run_in_reactor

logger = get_logger("router.routing")

_FIXED_DATABASES: Final = frozenset({"admin", "config"})

COLLECTIONS_MAX: Final = 10_000
"""A bound because clients may name collections that do not exist; mongos's ``catalogCacheCollectionMaxEntries``."""

_OLD_TABLES_MAX: Final = 100
"""Stale tables kept for a refresh. Older ones are evicted, for example for dropped collections."""


@dataclass
class RoutingStatistics:
    """Counters of the cache for ``serverStatus`` (``shardingStatistics.catalogCache``) and the metrics."""

    stale_config_errors: int = 0
    full_refreshes: int = 0
    incremental_refreshes: int = 0
    failed_refreshes: int = 0
    active_full_refreshes: int = 0
    active_incremental_refreshes: int = 0
    refresh_seconds: float = 0.0
    operations_that_waited: Counter[str] = field(default_factory=Counter)
    """By command name."""

    @contextmanager
    def refreshing(self, *, is_incremental: bool) -> Iterator[None]:
        """Count the refresh of a collection in the block as active, its time, and its failure."""
        started = perf_counter()
        self.active_incremental_refreshes += is_incremental
        self.active_full_refreshes += not is_incremental
        try:
            yield
        except CommandError:
            self.failed_refreshes += 1
            raise
        finally:
            self.active_incremental_refreshes -= is_incremental
            self.active_full_refreshes -= not is_incremental
            self.refresh_seconds += perf_counter() - started


class RoutingCache:
    """Databases and collections by name.

    Attributes:
        time_series: the sharded time-series collections that shards have reported. ``collections`` has them as
            unsharded, because their buckets are sharded, not they themselves.
    """

    def __init__(self, catalog: CatalogClient, nursery: trio.Nursery) -> None:
        self._catalog = catalog
        self._database_loads: SingleFlight[str, DatabaseRouting] = SingleFlight(nursery)
        self._collection_loads: SingleFlight[str, CollectionRouting] = SingleFlight(nursery)
        self._old_tables: dict[str, RoutingTable] = {}
        self.databases: dict[str, DatabaseRouting] = {
            name: DatabaseRouting(name, CONFIG_SHARD, None) for name in _FIXED_DATABASES
        }
        self.collections: dict[str, CollectionRouting] = {}
        self.time_series: set[str] = set()
        self.statistics = RoutingStatistics()

    @may_run_in_reactor
    async def database(self, name: str, *, create: bool = False, primary: str | None = None) -> DatabaseRouting:
        """Return the routing of a database.

        Args:
            create: whether to create it if it does not exist.
            primary: the shard to create it on; None if the config servers choose.

        Raises:
            CommandError: NamespaceNotFound; InvalidNamespace; ShardNotFound if there is no shard to create it on.
        """
        known = self.databases.get(name)
        if known is not None:
            return known
        check_database_name(name)
        try:
            return await self._database_loads.run(name, lambda: self._load_database(name))
        except CommandError as error:
            if not create or error.code != ErrorCode.NamespaceNotFound:
                raise
        await self._create_database(name, primary)
        return await self._database_loads.run(name, lambda: self._load_database(name))

    @may_run_in_reactor
    async def collection(
        self, namespace: str, *, create_database: bool = False, primary: str | None = None
    ) -> CollectionRouting:
        """Return the routing of a collection. One that does not exist is routed to the primary shard.

        Args:
            namespace: ``db.collection``.
            create_database: whether to create its database if that does not exist.
            primary: the shard to create the database on; None if the config servers choose.

        Raises:
            CommandError: as in `database`.
        """
        known = self.collections.get(namespace)
        if known is not None:
            return known
        if create_database:
            await self.database(namespace.partition(".")[0], create=True, primary=primary)
        return await self._collection_loads.run(namespace, lambda: self._load_collection(namespace))

    def note_time_series(self, namespace: str, stale: CommandError) -> bool:
        """Record a sharded time-series collection, if a shard refused an operation because the buckets are sharded.

        Args:
            namespace: ``db.collection``.
            stale: the shard's StaleConfig.

        Returns:
            Whether that was the reason.
        """
        if stale.extra.get("ns") != buckets_of(namespace):
            return False
        self.forget_collection(buckets_of(namespace))
        self.time_series.add(namespace)
        EPOCH.bump()
        return True

    @may_run_in_reactor
    async def sharded_buckets(self, namespace: str) -> CollectionRouting | None:
        """Return the routing of the buckets of a time-series collection; None unless it is known to be sharded."""
        if namespace not in self.time_series:
            return None
        buckets = self.collections.get(buckets_of(namespace)) or await self.collection(buckets_of(namespace))
        if buckets.is_sharded:
            return buckets
        self.time_series.discard(namespace)
        return None

    @may_run_in_reactor
    async def find(self, namespace: str, *, is_sharding_confirmed: bool = False) -> CollectionRouting | None:
        """Return the routing of a collection to read from; None if its database does not exist.

        Args:
            namespace: ``db.collection``.
            is_sharding_confirmed: whether to read the routing of a sharded collection from the catalog (`latest`).

        Raises:
            CommandError: InvalidNamespace.
        """
        try:
            routing = await self.collection(namespace)
            return await self.latest(routing) if is_sharding_confirmed and routing.is_sharded else routing
        except CommandError as error:
            if error.code != ErrorCode.NamespaceNotFound:
                raise
            return None

    @may_run_in_reactor
    async def latest(self, routing: CollectionRouting) -> CollectionRouting:
        """Read the current routing of a collection from the catalog, for decisions that no shard checks.

        The read begins after this call. For an unsharded collection, its database is read too. If nothing has changed,
        the routing of a sharded collection has the cached table itself.
        """
        namespace, database = routing.namespace, routing.database
        if not routing.is_sharded and database.version is not None:
            await self._database_loads.run_after_now(database.name, lambda: self._load_database(database.name))
        return await self._collection_loads.run_after_now(namespace, lambda: self._load_collection(namespace))

    @may_run_in_reactor
    async def confirmed_if_sharded(self, routing: CollectionRouting) -> CollectionRouting:
        """Return the routing by which an operation on a sharded collection may be refused: reread if it is sharded."""
        return await self.latest_if_readable(routing) if routing.is_sharded else routing

    @may_run_in_reactor
    async def latest_if_readable(self, routing: CollectionRouting) -> CollectionRouting:
        """Return the `latest` routing, or ``routing`` itself if the config servers do not answer in time."""
        return await self._catalog.attempt_briefly(lambda: self.latest(routing)) or routing

    def invalidate(self, routing: CollectionRouting) -> None:
        """Evict ``routing`` after a shard has refused an operation routed by it."""
        self.statistics.stale_config_errors += 1
        if self.collections.get(routing.namespace) is routing:
            self.forget_collection(routing.namespace)

    def invalidate_database(self, routing: DatabaseRouting) -> None:
        """Evict ``routing`` and its collections after a shard has refused an operation routed by it."""
        if routing.version is not None and self.databases.get(routing.name) is routing:
            self.forget_database(routing.name)

    def forget_collection(self, namespace: str) -> None:
        """Evict a collection; its table is kept for an incremental refresh."""
        routing = self.collections.pop(namespace, None)
        if routing is not None and routing.table is not None:
            self._old_tables[namespace] = routing.table
            if len(self._old_tables) > _OLD_TABLES_MAX:
                del self._old_tables[next(iter(self._old_tables))]

    def forget_database(self, name: str) -> None:
        """Evict a database and its collections."""
        if name in _FIXED_DATABASES:
            return
        self.databases.pop(name, None)
        prefix = name + "."
        for namespace in [each for each in self.collections if each.startswith(prefix)]:
            self.forget_collection(namespace)

    def forget_shards(self, gone: Set[str]) -> None:
        """Evict entries routed to shards that have been removed and so would not refuse them as stale."""
        for name in [name for name, database in self.databases.items() if database.primary in gone]:
            self.forget_database(name)
        for namespace, routing in list(self.collections.items()):
            if routing.table is not None and not gone.isdisjoint(routing.table.shards):
                self.forget_collection(namespace)

    def forget_all(self) -> None:
        """Evict everything, so that tables have full refreshes."""
        for name in list(self.databases):
            self.forget_database(name)
        self._old_tables.clear()
        self.time_series.clear()

    @may_run_in_reactor
    async def _create_database(self, name: str, primary: str | None) -> None:
        creation: dict[str, Any] = {"_configsvrCreateDatabase": name, "writeConcern": {"w": "majority"}}
        if primary is not None:
            creation["primaryShardId"] = primary
        try:
            await self._catalog.command(creation)
        except CommandError as error:
            if error.code == ErrorCode.NamespaceExists:
                return  # another client was faster, and chose another shard
            message = f"Database {name} could not be created :: caused by :: {error.message}"
            raise CommandError(error.code, message, labels=error.labels, extra=error.extra) from error

    async def _load_database(self, name: str) -> DatabaseRouting:
        """Read a database. Its entry stays in the cache during the read, so that operations on it do not wait."""
        entry = await self._catalog.read(read_database(name))
        known = self.databases.get(name)
        if entry is not None and known is not None and (known.primary, known.version) == (entry.primary, entry.version):
            return known
        self.forget_database(name)
        if entry is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"database {name} not found")
        config_time = self._catalog.clock.time.config_time
        routing = self.databases[name] = DatabaseRouting(name, entry.primary, entry.version, config_time)
        return routing

    async def _load_collection(self, namespace: str) -> CollectionRouting:
        database = await self.database(namespace.partition(".")[0])
        current = self.collections.get(namespace)
        known = self._old_tables.get(namespace) if current is None else current.table
        with self.statistics.refreshing(is_incremental=known is not None):
            table = await self._read_table(namespace, known)
        self._old_tables.pop(namespace, None)
        config_time = self._catalog.clock.time.config_time
        routing = CollectionRouting(namespace, database, table, config_time)
        if current is not None and current.table is table and current.database is database:
            routing = current  # the same object, because `invalidate` evicts an entry only by identity
        # While the sessions collection is unsharded, it is routed to the config servers. They would not refuse a stale
        # version, so that routing is not cached.
        if self.databases.get(database.name) is database and (table is not None or namespace != SESSIONS):
            self._keep(routing)
        return routing

    def _keep(self, routing: CollectionRouting) -> None:
        """Cache a collection; if there are too many, evict the one that was read longest ago."""
        self.collections.pop(routing.namespace, None)
        self.collections[routing.namespace] = routing
        if len(self.collections) > COLLECTIONS_MAX:
            del self.collections[next(iter(self.collections))]

    async def _read_table(self, namespace: str, known: RoutingTable | None) -> RoutingTable | None:
        if namespace.partition(".")[0] in _FIXED_DATABASES and namespace != SESSIONS:
            return None
        table = await self._catalog.read(read_routing(namespace, known))
        if table is not None and known is not None and table.collection.timestamp == known.collection.timestamp:
            self.statistics.incremental_refreshes += 1
        else:
            self.statistics.full_refreshes += 1
        return table
