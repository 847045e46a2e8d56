"""This shard's part of the catalog, persisted in ``config.cache.*`` of its mongod in the background.

Only the primary writes it. Secondaries receive it by replication, and a restarted daemon does not start empty. While
the chunks of a collection are being written, its entry has ``refreshing: true``; reads during that time have to be
repeated.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.sharding.catalog.cache import (
    CACHE_COLLECTIONS,
    CACHE_DATABASES,
    CachedCollection,
    CachedDatabase,
    cache_chunks_namespace,
    cached_placement_document,
)
from shardwright.sharding.catalog.documents import CACHE_CHUNKS_INDEXES, DatabaseEntry
from shardwright.sharding.chunks import ChunkPlacement, read_placements
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, RoutingTableBuilder
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.limits import write_batches
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, index
from shardwright.wire.transport.cursor import RawCursor

_CONFIG: Final = "config"
_CHUNKS_PER_WRITE: Final = 1_000
_CHUNKS_PER_READ: Final = 5_000
_READ_ATTEMPTS_MAX: Final = 10

Item = TypeVar("Item")


class MetadataStore:
    """Reads and writes the cache collections of the local mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        # The persisted metadata that this process has written, or read as primary. Only differences are written,
        # because each write makes secondaries refresh.
        self._persisted: dict[str, RoutingTable | None] = {}
        self._persisted_databases: dict[str, DatabaseEntry | None] = {}

    def forget(self) -> None:
        """Drop the copy of the persisted metadata, because another primary may have written since."""
        self._persisted.clear()
        self._persisted_databases.clear()

    async def load_collection(self, namespace: str, after: Timestamp | None = None) -> RoutingTable | None:
        """Return the persisted routing table of a collection, or None.

        Args:
            after: an operation time to read after, such as the time of the primary's last write.

        Raises:
            CommandError: ConflictingOperationInProgress, it was being written during all attempts.
        """
        for _ in range(_READ_ATTEMPTS_MAX):
            before = await self._entry(namespace, after)
            if before is None:
                return None
            builder = await self._builder(before, after)
            if not before.refreshing and await self._entry(namespace, after) == before:
                table = self._persisted[namespace] = builder.finish()
                return table
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"the cached chunks of {namespace} are being written"
        )

    async def load_own_collection(self, namespace: str) -> RoutingTable | None:
        """Return the persisted routing table for the primary, which ignores a former primary's unfinished write.

        The primary is the only writer, so it need not wait as `load_collection` does.
        """
        entry = await self._entry(namespace, None)
        return None if entry is None or entry.refreshing else await self.load_collection(namespace)

    async def save_collection(self, namespace: str, table: RoutingTable | None) -> None:
        """Persist a collection's routing table; None if it is not sharded."""
        if namespace not in self._persisted and await self._has(namespace, table):
            self._persisted[namespace] = table
        if namespace in self._persisted and _is_same(self._persisted[namespace], table):
            return
        chunks = cache_chunks_namespace(Namespace.parse(namespace)).collection
        before = self._persisted.pop(namespace, None)
        if table is None:
            await self._delete(CACHE_COLLECTIONS.collection, {"_id": namespace})
            await self._drop(chunks)
            self._persisted[namespace] = None
            return
        if before is not None and before.collection.timestamp != table.collection.timestamp:
            before = None
        cached = CachedCollection.from_collection(table.collection, refreshing=True)
        await self._replace(CACHE_COLLECTIONS.collection, cached.to_document())
        if before is None:
            await self._drop(chunks)
            await self._command({"create": chunks})
            indexes = [each.to_specification() for each in CACHE_CHUNKS_INDEXES]
            await self._command({"createIndexes": chunks, "indexes": indexes})
        for batch in _batches(table.placements_since(before), _CHUNKS_PER_WRITE):
            if before is not None:
                await self._delete_overlapping(chunks, batch)
            for documents in write_batches(map(cached_placement_document, batch)):
                await self._write({"insert": chunks, "documents": documents})
        done = replace(cached, refreshing=False, last_refreshed_version=table.collection_version.lastmod)
        await self._replace(CACHE_COLLECTIONS.collection, done.to_document())
        self._persisted[namespace] = table

    async def count_critical_section(self, namespace: str) -> None:
        """Change a collection's entry, if it exists, to notify secondaries that its placement may change."""
        update = {"q": {"_id": namespace}, "u": {"$inc": {"enterCriticalSectionCounter": 1}}}
        await self._write({"update": CACHE_COLLECTIONS.collection, "updates": [update], "writeConcern": {"w": 1}})

    async def count_database_critical_section(self, db: str) -> None:
        """Change a database's entry, if it exists, to notify secondaries that its primary shard may change."""
        update = {"q": {"_id": db}, "u": {"$inc": {"enterCriticalSectionCounter": 1}}}
        await self._write({"update": CACHE_DATABASES.collection, "updates": [update], "writeConcern": {"w": 1}})

    async def load_database(self, db: str, after: Timestamp | None = None) -> DatabaseEntry | None:
        """Return the persisted entry of a database, or None."""
        documents = await self._find(CACHE_DATABASES.collection, {"_id": db}, after)
        if not documents:
            return None
        cached = CachedDatabase.from_document(_decode(documents[0]))
        return DatabaseEntry(cached.id, cached.primary, cached.version, cached.moved_at)

    async def save_database(self, db: str, entry: DatabaseEntry | None) -> None:
        """Persist a database's entry; None if the database does not exist."""
        if db not in self._persisted_databases:
            self._persisted_databases[db] = await self.load_database(db)
        if self._persisted_databases[db] == entry:
            return
        self._persisted_databases.pop(db, None)
        if entry is None:
            await self._delete(CACHE_DATABASES.collection, {"_id": db})
        else:
            cached = CachedDatabase(entry.name, entry.primary, entry.version, moved_at=entry.moved_at)
            await self._replace(CACHE_DATABASES.collection, cached.to_document())
        self._persisted_databases[db] = entry

    async def _has(self, namespace: str, table: RoutingTable | None) -> bool:
        """Whether a former primary has persisted the same routing table.

        Writing it again would make each secondary refresh, and its reads wait for the refresh. With a frozen member,
        the dozen majority writes of one collection take half a minute.
        """
        entry = await self._entry(namespace, None)
        if entry is None:
            return table is None
        return not entry.refreshing and table is not None and _is_same(await self.load_own_collection(namespace), table)

    async def _entry(self, namespace: str, after: Timestamp | None) -> CachedCollection | None:
        documents = await self._find(CACHE_COLLECTIONS.collection, {"_id": namespace}, after)
        return CachedCollection.from_document(_decode(documents[0])) if documents else None

    async def _builder(self, cached: CachedCollection, after: Timestamp | None) -> RoutingTableBuilder:
        """Return a builder with the cached chunks."""
        builder = RoutingTableBuilder(cached.for_routing())
        chunks = cache_chunks_namespace(cached.namespace).collection
        async with self._cursor(chunks, {}, after, sort={"_id": 1}) as cursor:
            more: dict[str, int] = {}
            while not cursor.is_exhausted:
                batch = await cursor.next_batch(**more)
                builder.add(read_placements(batch.documents(), is_cached=True))
                more = {"batchSize": _CHUNKS_PER_READ}
        return builder

    async def _find(self, collection: str, query: Mapping[str, Any], after: Timestamp | None) -> list[bytes]:
        """Return all documents that match a query on the local mongod in any role."""
        return await self._cursor(collection, query, after).all_documents()

    def _cursor(
        self, collection: str, query: Mapping[str, Any], after: Timestamp | None, **options: object
    ) -> RawCursor:
        command: dict[str, Any] = {
            "find": collection,
            "filter": query,
            "$readPreference": {"mode": "nearest"},
            **options,
        }
        if after is not None:
            command["readConcern"] = {"level": "local", "afterClusterTime": after}
            # This is the primary's time. A secondary refuses to wait for a time that it has not received by gossip.
            command["$clusterTime"] = signed_cluster_time(after)
        return RawCursor(self._mongod.pool.exchange, _CONFIG, command)

    async def _replace(self, collection: str, document: Mapping[str, Any]) -> None:
        update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
        await self._write({"update": collection, "updates": [update]})

    async def _delete(self, collection: str, query: Mapping[str, Any]) -> None:
        await self._write({"delete": collection, "deletes": [{"q": query, "limit": 1}]})

    async def _delete_overlapping(self, collection: str, batch: list[ChunkPlacement]) -> None:
        """Delete the cached chunks whose lower bounds are in the ranges of changed ones, which replace them."""
        # One by one, so that mongod can refuse them if they arrive in a later term (`daemon.sidecar.term_fence`).
        deletes = []
        for least, end_of_range in _ranges(batch):
            bounds = {"$gte": bson.raw_bson.RawBSONDocument(least), "$lt": bson.raw_bson.RawBSONDocument(end_of_range)}
            for raw in await self._find(collection, {"_id": bounds}, None):
                start, end = index(raw)[b"_id"][2:]
                deletes.append({"q": {"_id": bson.raw_bson.RawBSONDocument(raw[start:end])}, "limit": 1})
        for statements in write_batches(deletes):
            await self._write({"delete": collection, "deletes": statements})

    async def _drop(self, collection: str) -> None:
        try:
            await self._command({"drop": collection})
        except CommandError as error:
            if error.code != ErrorCode.NamespaceNotFound:
                raise

    async def _write(self, command: Mapping[str, Any]) -> None:
        await self._mongod.write(_CONFIG, command)

    async def _command(self, command: Mapping[str, Any]) -> dict[str, Any]:
        return await self._mongod.command(_CONFIG, command)


def _is_same(before: RoutingTable | None, after: RoutingTable | None) -> bool:
    """Whether both would be persisted as the same documents."""
    if before is None or after is None:
        return before is after
    return before.collection == after.collection and before.collection_version == after.collection_version


def _ranges(chunks: Iterable[ChunkPlacement]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ranges that adjacent chunks cover; the chunks are in the order of their keys."""
    least = end = b""
    for chunk in chunks:
        if chunk.min != end:
            if end:
                yield least, end
            least = chunk.min
        end = chunk.max
    if end:
        yield least, end


def _decode(document: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = decode_document(document)
    return decoded


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(islice(items, size)):
        yield batch


logger = get_logger("shardd.metadata_writer")


class MetadataWriter:
    """Persists the latest metadata of each namespace and database; `run` runs while mongod is primary."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._pending: dict[tuple[str, str], RoutingTable | DatabaseEntry | None] = {}
        self._writing: tuple[str, str] | None = None
        self._failures: dict[tuple[str, str], CommandError] = {}
        self._work = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    def save_collection(self, namespace: str, table: RoutingTable | None) -> None:
        """Queue a collection's routing table."""
        self._add(("collection", namespace), table)

    def save_database(self, db: str, entry: DatabaseEntry | None) -> None:
        """Queue a database's entry."""
        self._add(("database", db), entry)

    async def wait_collection_saved(self, namespace: str) -> None:
        """Return when a collection's last queued routing table is persisted, or raise the error of the write.

        Raises InterruptedDueToReplStateChange if the term ended first.
        """
        await self._wait_saved(("collection", namespace))

    async def wait_database_saved(self, db: str) -> None:
        """Return when a database's last queued entry is persisted; errors are as for `wait_collection_saved`."""
        await self._wait_saved(("database", db))

    async def run(self) -> None:
        """Write until cancelled at the end of the term.

        A failed write is not repeated: secondaries find the older metadata and refresh, and waiters get the error.
        """
        self._store.forget()
        self._pending.clear()
        self._failures.clear()
        try:
            while True:
                while self._pending:
                    self._writing = key = next(iter(self._pending))
                    value = self._pending.pop(key)
                    try:
                        await self._save(key, value)
                    except (CommandError, BackendError) as error:
                        self._failures[key] = as_command_error(error)
                        logger.warning("Could not persist metadata", kind=key[0], namespace=key[1], error=str(error))
                    self._writing = None
                    self._progress.unpark_all()
                self._work = trio.Event()
                await self._work.wait()
        finally:
            for key in (*self._pending, *filter(None, (self._writing,))):
                self._failures[key] = CommandError(
                    ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted"
                )
            self._pending.clear()
            self._writing = None
            self._progress.unpark_all()

    def _add(self, key: tuple[str, str], value: RoutingTable | DatabaseEntry | None) -> None:
        self._pending.pop(key, None)
        self._failures.pop(key, None)
        self._pending[key] = value
        self._work.set()

    async def _wait_saved(self, key: tuple[str, str]) -> None:
        while key in self._pending or self._writing == key:
            await self._progress.park()
        failure = self._failures.get(key)
        if failure is not None:
            raise failure

    async def _save(self, key: tuple[str, str], value: RoutingTable | DatabaseEntry | None) -> None:
        kind, name = key
        if kind == "database":
            assert not isinstance(value, RoutingTable)
            await self._store.save_database(name, value)
        else:
            assert not isinstance(value, DatabaseEntry)
            await self._store.save_collection(name, value)
