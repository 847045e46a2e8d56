"""Metadata refreshes: on the primary from the config servers, on a secondary from its primary.

Concurrent refreshes of the same namespace or database are joined. A refresh reads again if the state was dropped after
it began, so no refresh can restore metadata that a critical section has dropped. A refresh that began in another role
or term is not joined, and ends without a result. Otherwise two waits could form a cycle: a secondary's refresh waits
for the end of the primary's critical section, while the primary, which may be the same member by then, waits for a
refresh.

**Secondaries.** The primary's ``config.cache.*`` and range deletions arrive by replication. Until then a secondary may
answer routers by its older metadata, which matches its older data; afterwards it must not. Change streams do not cover
the config database, so `CacheWatch` follows the oplog itself, with a filter that mongod applies.

A change of the metadata takes effect a moment after the data has arrived. Usually that is right, because both match.
But a read after a time (``afterClusterTime``) may follow a write that another shard accepted after a migration. So
`CausalReads` reads the cached entry after that time. The entry has changed by the beginning of the critical section at
the latest (``enterCriticalSectionCounter``).
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.metrics import LabelledCounter
from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import awaited_time
from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.daemon.single_flight import SingleFlight
from shardwright.shardd.exchange.remote_sets import Catalog, as_command_error
from shardwright.shardd.metadata.critical_sections import RecoveryGate
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.metadata_store import MetadataStore, MetadataWriter
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.range_deletion_tasks import RANGE_DELETIONS, RangeDeletionTasks
from shardwright.sharding.catalog.cache import CACHE_COLLECTIONS, CACHE_DATABASES
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.catalog.reads import read_database, read_routing
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.read_preference import PRIMARY_PREFERRED
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.cursor import DecodedCursor
from shardwright.wire.transport.reactor import may_run_in_reactor

logger = get_logger("shardd.refresh")

AFTER_SECTION: Final = "afterCriticalSection"
"""Our own argument of flushes: first wait for the end of a critical section, in which the placement may change."""

_Key: TypeAlias = tuple[str, str, int | None]
"""Collection or database, its name, and the term of the refresh; None on a secondary."""

LOCAL_RENAMES: Final = "localRenameParticipants"
"""The collection of ``config`` with this shard's pending renames: ``_id`` is renamed to ``to``."""

_AWAIT_MS: Final = 5_000


class Sources(Protocol):
    """The sources of a refresh."""

    @property
    def is_primary(self) -> bool:
        """Whether the local mongod is primary."""

    @property
    def term(self) -> int | None:
        """The term in which the local mongod is primary; None if it is not."""

    @property
    def recovery_gate(self) -> RecoveryGate:
        """Closed until the critical sections of earlier terms have been recovered."""

    @property
    def range_deletion_tasks(self) -> RangeDeletionTasks:
        """The ranges that may hold orphans."""

    async def catalog(self) -> Catalog:
        """Return the client of the config servers."""

    async def advance_cluster_time(self, time: Timestamp) -> None:
        """Advance the local mongod's clock, so that its later writes have later times than this one."""

    async def ask_primary(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run an admin command on the daemon of the set's primary."""


class MetadataRefresher:
    """Refreshes the states of namespaces and databases.

    All methods raise CommandError if the metadata could not be read.

    Args:
        nursery: runs the refreshes, so that they outlive the operations that requested them.
    """

    def __init__(
        self,
        sources: Sources,
        store: MetadataStore,
        writer: MetadataWriter,
        nursery: trio.Nursery,
        counter: LabelledCounter,
    ) -> None:
        self._sources = sources
        self._store = store
        self._writer = writer
        # The running refreshes of each term, with whether they had a result.
        self._flights: SingleFlight[_Key, bool] = SingleFlight(nursery)
        self._counter = counter
        self._advanced_to = 0

    async def refresh_collection(self, state: NamespaceState) -> None:
        """Refresh a namespace, or join the running refresh."""
        await self._in_one_role(
            self._flights.run, "collection", state.namespace, partial(self._refresh_collection, state)
        )

    async def reread_collection(self, state: NamespaceState) -> None:
        """Refresh a namespace by a read that begins after this call."""
        refresh = partial(self._refresh_collection, state)
        await self._in_one_role(self._flights.run_after_now, "collection", state.namespace, refresh)

    async def current_table(self, state: NamespaceState) -> RoutingTable | None:
        """Return the routing table as of this call; None if the namespace is not sharded."""
        await self.reread_collection(state)
        while not state.is_known:  # it may be forgotten again at once, for instance by a critical section
            await self.reread_collection(state)
        return state.table

    async def refresh_database(self, state: DatabaseState) -> None:
        """Refresh a database, or join the running refresh."""
        await self._in_one_role(self._flights.run, "database", state.name, partial(self._refresh_database, state))

    async def _in_one_role(
        self,
        run: Callable[[_Key, Callable[[], Awaitable[bool]]], Awaitable[bool]],
        kind: str,
        name: str,
        refresh: Callable[[int | None], Awaitable[bool]],
    ) -> None:
        """Run or join a refresh in the current role; repeat it if the role changes meanwhile."""
        is_done = False
        while not is_done:
            term = self._sources.term
            is_done = await run((kind, name, term), partial(_with_command_errors, refresh, term))

    async def _refresh_collection(self, state: NamespaceState, term: int | None) -> bool:
        """Refresh a namespace as primary of ``term``, or as a secondary; return False if the role changes."""
        self._counter.add("collection")
        while self._sources.term == term:
            generation = state.generation
            table = await self._read_collection(state)
            if table is not None:
                # A write that this shard accepts as the new owner must not have an earlier time than the placement,
                # because a snapshot at such a time is read from the former owner.
                await self._advance_to(table.newest_valid_after)
            if state.generation == generation and self._sources.term == term:
                if term is not None:
                    self._writer.save_collection(state.namespace, table)
                state.learn(table)
                version = None if table is None else str(table.collection_version)
                logger.info("Refreshed a collection", namespace=state.namespace, version=version)
                return True
        return False

    async def _read_collection(self, state: NamespaceState) -> RoutingTable | None:
        namespace = state.namespace
        if not self._sources.is_primary:
            await self._sources.range_deletion_tasks.wait_loaded()
            after = await self._flush_on_primary({"_flushRoutingTableCacheUpdates": namespace, AFTER_SECTION: True})
            return await self._store.load_collection(namespace, after)
        await self._sources.recovery_gate.wait_open()
        known = state.last_table or await self._store.load_own_collection(namespace)
        catalog = await self._sources.catalog()
        return await catalog.read(read_routing(namespace, known), preference=PRIMARY_PREFERRED)

    async def _advance_to(self, time: int) -> None:
        """Advance a primary's mongod to a packed cluster time, at which a placement became valid."""
        if time > self._advanced_to and self._sources.is_primary:
            await self._sources.advance_cluster_time(unpack_timestamp(time))
            self._advanced_to = time

    async def _refresh_database(self, state: DatabaseState, term: int | None) -> bool:
        """Refresh a database as `_refresh_collection` does a namespace."""
        self._counter.add("database")
        while self._sources.term == term:
            generation = state.generation
            entry = await self._read_database(state)
            if state.generation == generation and self._sources.term == term:
                if term is not None:
                    self._writer.save_database(state.name, entry)
                state.learn(entry)
                logger.info("Refreshed a database", db=state.name, version=str(entry.version) if entry else None)
                return True
        return False

    async def _read_database(self, state: DatabaseState) -> DatabaseEntry | None:
        if not self._sources.is_primary:
            after = await self._flush_on_primary({"_flushDatabaseCacheUpdates": state.name, AFTER_SECTION: True})
            return await self._store.load_database(state.name, after)
        await self._sources.recovery_gate.wait_open()
        catalog = await self._sources.catalog()
        entry = await catalog.read(read_database(state.name), preference=PRIMARY_PREFERRED)
        if entry is not None:
            # Change streams use the time to tell which database of that name an event is about.
            await self._advance_to(pack_timestamp(entry.version.timestamp))
        return entry

    async def _flush_on_primary(self, command: dict[str, Any]) -> Timestamp | None:
        """Make the primary refresh and persist; return the time after which to read the result locally."""
        reply = await self._sources.ask_primary(command)
        written: Timestamp | None = reply.get("operationTime")
        return written


async def _with_command_errors(refresh: Callable[[int | None], Awaitable[bool]], term: int | None) -> bool:
    """Run a refresh, and convert connection failures to HostUnreachable, which can be sent to clients."""
    try:
        return await refresh(term)
    except BackendError as error:
        raise as_command_error(error) from error


class CacheWatch:
    """Follows the local mongod's oplog while it is a secondary.

    Args:
        certainty: signals when the components of an earlier role have stopped.
        on_collection: called with a namespace whose cached entry changed.
        on_database: called with a database whose cached entry changed.
        on_range_deletion: called with an oplog entry of ``config.rangeDeletions``.
        on_rename: called with the document of a rename that begins, before mongod has applied the rename itself.
        on_gap: called when changes may have been missed.
    """

    def __init__(
        self,
        mirror: HelloMirror,
        certainty: RoleCertainty,
        open_connection: Callable[[], Awaitable[Connection]],
        *,
        on_collection: Callable[[str], None],
        on_database: Callable[[str], None],
        on_range_deletion: Callable[[Mapping[str, Any]], Awaitable[None]],
        on_rename: Callable[[Mapping[str, Any]], None],
        on_gap: Callable[[], Awaitable[None]],
    ) -> None:
        self._mirror = mirror
        self._certainty = certainty
        self._open_connection = open_connection

        async def note_collection(entry: Mapping[str, Any]) -> None:
            on_collection(_changed_id(entry))

        async def note_database(entry: Mapping[str, Any]) -> None:
            on_database(_changed_id(entry))

        async def note_rename(entry: Mapping[str, Any]) -> None:
            if entry["op"] == "i":
                on_rename(entry["o"])

        self._on_change: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[None]]] = {
            str(CACHE_COLLECTIONS): note_collection,
            str(CACHE_DATABASES): note_database,
            f"config.{RANGE_DELETIONS}": on_range_deletion,
            f"config.{LOCAL_RENAMES}": note_rename,
        }
        self._on_gap = on_gap
        self._backoff = Backoff(first_seconds=0.5, seconds_max=1.0)

    async def run(self) -> None:
        """Follow the oplog while mongod is a secondary, until cancelled."""
        while True:
            while not self._is_secondary:
                await self._mirror.wait_for_change()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_following)
                    while self._is_secondary:
                        await self._mirror.wait_for_change()
                    scope.cancel()

    @property
    def _is_secondary(self) -> bool:
        hello = self._mirror.hello
        return hello is not None and bool(hello.get("secondary"))

    async def _keep_following(self) -> None:
        # The end of a term, a moment after its mongod has stepped down, drops the state that `on_gap` reads.
        await self._certainty.wait_settled()
        while True:
            try:
                await self._follow()
            except (BackendError, CommandError) as error:
                logger.info("Reopening the oplog cursor", error=str(error))
            await self._backoff.pause()

    async def _follow(self) -> None:
        """Follow the oplog from its current end; return when the cursor is exhausted."""
        connection = await self._open_connection()
        try:
            last = await connection.command(
                "local",
                {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1, "singleBatch": True, **_ON_A_SECONDARY},
            )
            since = last["cursor"]["firstBatch"][0]["ts"]
            following = {
                "find": "oplog.rs",
                "filter": {"ts": {"$gt": since}, "ns": {"$in": list(self._on_change)}},
                "tailable": True,
                "awaitData": True,
                **_ON_A_SECONDARY,
            }
            # The cursor is not closed: a getMore is nearly always running, and mongod ends the cursor with the
            # connection.
            cursor = DecodedCursor(connection.command, "local", following)
            batch = await cursor.next_batch()
            # From here on no change is missed, but earlier changes may have been.
            await self._on_gap()
            self._backoff.reset()
            while True:
                for entry in batch.documents():
                    await self._on_change[entry["ns"]](entry)
                if cursor.is_exhausted:
                    return
                batch = await cursor.next_batch(maxTimeMS=_AWAIT_MS)
        finally:
            connection.close()


def _changed_id(entry: Mapping[str, Any]) -> str:
    changed: str = (entry.get("o2") or entry["o"])["_id"]
    return changed


_ON_A_SECONDARY: Final = {"$readPreference": {"mode": "nearest"}}


class CausalReads:
    """Drops metadata that is older than the time a read waits for.

    Keeps the cached entries of the last reads for comparison.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._entries: WeakKeyDictionary[NamespaceState, list[dict[str, Any]]] = WeakKeyDictionary()

    @may_run_in_reactor
    async def prepare(self, request: Request, state: NamespaceState) -> None:
        """Drop a collection's metadata if its cached entry has changed by the time that a read waits for.

        Raises MaxTimeMSExpired if the local mongod did not reach that time.
        """
        time = awaited_time(request)
        if time is None:
            return
        find: dict[str, Any] = {
            "find": CACHE_COLLECTIONS.collection,
            "filter": {"_id": state.namespace},
            "singleBatch": True,
            "readConcern": {"level": "local", "afterClusterTime": time},
            "$readPreference": {"mode": "nearest"},
        }
        for name in (b"$clusterTime", b"maxTimeMS"):
            if name in request.fields:
                find[name.decode(errors="replace")] = request.get(name)
        reply = await self._mongod.command(CACHE_COLLECTIONS.db, find)
        found = reply["cursor"]["firstBatch"]
        if self._entries.get(state) != found:
            self._entries[state] = found
            state.forget()
