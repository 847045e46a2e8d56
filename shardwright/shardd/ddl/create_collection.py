"""Sharding a new or existing collection (``_shardsvrCreateCollection``).

The order is MongoDB's: the collection and its shard key index are created on this shard in a critical section, then on
the other shards that get chunks. Then the config servers commit, the one step that makes the collection sharded.

**Change streams.** A mongod writes events only for its own commands, and has no command for sharding. So a ``collMod``
without changes marks the time in the oplog. Routers recognise the mark by changelog entries from before and after it.
Users' commands cannot come between, because the coordinator holds the lock of the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext, log_change, send_to_shards
from shardwright.shardd.ddl.coordinator import Coordinator, check_expected_uuid
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import LocalCollection
from shardwright.shardd.local_mongod.shard_key_index import ensure_shard_key_index
from shardwright.shardd.metadata.critical_sections import ExclusiveSection, enter_together
from shardwright.sharding import initial_chunks
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import CollectionEntry, TagEntry
from shardwright.sharding.initial_chunks import InitialPlacement, PlannedChunk, make_initial_chunks
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, encode_document

logger = get_logger("shardd.ddl")

_NOT_TIME_SERIES: Final = 6159000
_OTHER_OPTIONS: Final = 5731500
"""MongoDB's numbers for errors without a name."""


async def plan_initial_chunks(
    context: ShardContext,
    namespace: Namespace,
    pattern: ShardKeyPattern,
    arguments: Mapping[str, Any],
    *,
    is_empty: bool,
) -> Sequence[PlannedChunk]:
    """Return the first chunks of a collection that this shard, as primary shard of its database, is about to shard.

    Raises InvalidOptions and others if the options contradict one another or the zones.
    """
    catalog = await context.catalog()
    shards = await catalog.shards()
    documents = await catalog.find("tags", {"ns": str(namespace)}, sort={"min": 1})
    tags = [TagEntry.from_document(decode_document(each)) for each in documents]
    for tag in tags:
        tag.check_fits(pattern)
    shards_of_zone: dict[str, list[str]] = {}
    for shard_id, entry in shards.items():
        for zone in entry.tags:
            shards_of_zone.setdefault(zone, []).append(shard_id)
    points = arguments.get("initialSplitPoints")
    placement = InitialPlacement(
        pattern=pattern,
        primary_shard=context.require_identity().shard_name,
        shards=[shard_id for shard_id, entry in shards.items() if not entry.is_draining],
        is_empty=is_empty,
        zones=[tag.zone_range(pattern) for tag in tags],
        shards_of_zone=shards_of_zone,
        num_initial_chunks=int(arguments.get("numInitialChunks") or 0),
        presplit_hashed_zones=bool(arguments.get("presplitHashedZones", False)),
        split_points=None if points is None else [encode_document(point) for point in points],
    )
    return initial_chunks.plan_initial_chunks(placement)


_WAIT_MS_MAX: Final = 2000
"""Time that the mark may wait for open transactions on the collection, while operations on it wait for the mark."""


async def mark_sharded(mongod: LocalMongod, collection: ShardedCollection) -> None:
    """Write the mark. If that fails, change streams do not show that the collection was sharded."""
    namespace = collection.namespace
    mark = {
        "collMod": namespace.collection,
        "collectionUUID": Binary.from_uuid(collection.uuid),
        "maxTimeMS": _WAIT_MS_MAX,
    }
    try:
        await mongod.command(namespace.db, mark)
    except CommandError as error:
        logger.warning("Change streams will not show the sharding", namespace=str(namespace), error=str(error))


COMMIT = "commit"

_NOT_SHOWN = frozenset({"session"})
"""Arguments that the coordinator adds to the request's."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The collection on this shard, ready to be sharded."""

    local: LocalCollection
    is_empty: bool
    plan: Sequence[PlannedChunk]

    @property
    def uuid(self) -> UUID:
        """The collection's UUID, the same on every shard."""
        assert self.local.uuid is not None
        return self.local.uuid


class CreateCollection(Coordinator):
    """Shards a collection.

    The arguments are the fields of the request: ``shardKey``, ``unique``, ``numInitialChunks`` and so on. With
    ``timeseries``, the namespace and the key are the buckets' (see `ddl.modify_collection`).
    """

    operation_type: ClassVar[str] = "createCollection_V2"

    @property
    def persisted_section(self) -> ExclusiveSection | None:
        """The section in which the commit is sent."""
        return self._section if self.phase == COMMIT else None

    async def run(self) -> dict[str, Any]:
        """Shard the collection.

        Once the commit may have been sent, operations on the collection wait until its outcome is known, also from one
        attempt to the next. Otherwise the shard could learn that the collection is not sharded just before it is, and
        accept writes for ranges that other shards own.

        Raises:
            CommandError: AlreadyInitialized, it is sharded with other options; InvalidOptions, BadValue,
                IllegalOperation, CollectionUUIDMismatch and others, it cannot be sharded as requested.
        """
        try:
            return await self._run()
        except BaseException:
            section = self._section
            if section.section is not None:
                section.state.forget()
                if not self.must_finish:
                    section.leave()
            raise

    async def _run(self) -> dict[str, Any]:
        pattern = ShardKeyPattern.from_mapping(self.arguments["shardKey"])
        self._check_arguments(pattern)
        if self.phase is None:
            await check_expected_uuid(self.context.mongod, self.namespace, self.arguments.get("collectionUUID"))
        else:
            await self._end_earlier_commit()
        table = await self.read_routing()
        if table is None:
            self.must_finish = False  # no earlier attempt, or primary, has committed, nor will its commit arrive late
            table = await self._shard_collection(pattern)
        else:
            self._check_same(table, pattern)
            if self.phase is not None:
                await self._publish(table)
                self._section.leave()
                await self._log_end(table)
        return {"collectionUUID": Binary.from_uuid(table.collection.uuid), "collectionVersion": _version(table)}

    @property
    def _section(self) -> ExclusiveSection:
        """The critical section in which operations on the collection wait while it is being sharded."""
        namespace = str(self.namespace)
        return ExclusiveSection(self.context.namespace(namespace), {"command": "createCollection", "ns": namespace})

    @property
    def _unique(self) -> bool:
        return bool(self.arguments.get("unique", False))

    @property
    def _time_series(self) -> TimeSeriesFields | None:
        options = self.arguments.get("timeseries")
        return None if options is None else TimeSeriesFields.from_document(options)

    async def _shard_collection(self, pattern: ShardKeyPattern) -> RoutingTable:
        context, namespace = self.context, self.namespace
        me = context.require_identity().shard_name
        details = {
            "shardKey": self.arguments["shardKey"],
            "collection": str(namespace),
            "primary": me,
            "request": {name: value for name, value in self.arguments.items() if name not in _NOT_SHOWN},
            "markedAfter": await context.mongod.operation_time(),
        }
        await log_change(context, "shardCollection.start", str(namespace), details)
        await enter_together([self._section])
        prepared = await self._prepare(pattern)
        await self.enter_phase(COMMIT)
        await self._prepare_other_shards(prepared)
        with self.point_of_no_return():
            await self._commit(pattern, prepared)
        self._section.state.forget()
        table = await self.read_routing()
        if table is None:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress, f"the collection {namespace} was dropped concurrently"
            )
        await self._publish(table)
        self._section.leave()
        await self._log_end(table, empty=prepared.is_empty)
        return table

    def _check_arguments(self, pattern: ShardKeyPattern) -> None:
        """Refuse arguments that are invalid for any collection."""
        arguments, namespace = self.arguments, self.namespace
        if namespace.is_internal and not namespace.is_logical_sessions:
            raise CommandError(ErrorCode.IllegalOperation, f"can't shard collections in the {namespace.db} database")
        if namespace.is_system and not (namespace.is_logical_sessions or self._time_series is not None):
            raise CommandError(ErrorCode.IllegalOperation, "can't shard system namespaces")
        namespace.check_shardable()
        if self._unique and pattern.hashed_field is not None:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field "
                "by declaring an additional (non-hashed) unique index on the field.",
            )
        collation = arguments.get("collation")
        if collation is not None and collation != {"locale": "simple"}:
            raise CommandError(
                ErrorCode.BadValue,
                f"The collation for shardCollection must be {{locale: 'simple'}}, but found: {_text(collation)}",
            )

    def _check_same(self, table: RoutingTable, pattern: ShardKeyPattern) -> None:
        """Accept a collection that is already sharded as requested; refuse any other."""
        collection = table.collection
        if collection.key_pattern.fields == pattern.fields and collection.unique == self._unique:
            return
        raise CommandError(ErrorCode.AlreadyInitialized, f"sharding already enabled for collection {self.namespace}")

    async def _prepare(self, pattern: ShardKeyPattern) -> Prepared:
        """Create the collection and its index here if they do not exist, and plan its chunks."""
        mongod, namespace, arguments = self.context.mongod, self.namespace, self.arguments
        local = await local_collections.describe(mongod, namespace)
        if local is None:
            await local_collections.create(mongod, namespace, self._time_series)
            self.context.views.forget()
            local = await local_collections.describe(mongod, namespace)
        self._check_local(local)
        assert local is not None
        await ensure_shard_key_index(
            mongod,
            namespace,
            pattern,
            unique=self._unique and bool(arguments.get("enforceUniquenessCheck", True)),
            is_declared_unique=self._unique,
            has_default_collation="collation" in local.options,
            may_create=bool(arguments.get("implicitlyCreateIndex", True)),
        )
        is_empty = await local_collections.is_empty(mongod, namespace)
        plan = await plan_initial_chunks(self.context, namespace, pattern, arguments, is_empty=is_empty)
        return Prepared(local, is_empty, plan)

    def _check_local(self, local: LocalCollection | None) -> None:
        if local is None or local.kind != "collection":
            raise CommandError(
                ErrorCode.CommandNotSupportedOnView, f"Namespace {self.namespace} already exists as a view"
            )
        if local.options.get("capped"):
            raise CommandError(ErrorCode.InvalidOptions, "can't shard a capped collection")
        if "collation" in local.options and self.arguments.get("collation") is None:
            raise CommandError(
                ErrorCode.BadValue,
                f"Collection has default collation: {_text(local.options['collation'])}. "
                "Must specify collation {locale: 'simple'}",
            )

    async def _prepare_other_shards(self, prepared: Prepared) -> None:
        me = self.context.require_identity().shard_name
        others = {each.shard for each in prepared.plan} - {me}
        if not others:
            return
        indexes = await local_collections.list_indexes(self.context.mongod, self.namespace)
        participate = {
            "_shardsvrCreateCollectionParticipant": self.namespace.collection,
            "options": dict(prepared.local.options),
            "indexes": [index for index in indexes if index["name"] != "_id_"],
            "collectionUUID": Binary.from_uuid(prepared.uuid),
            **self.session,
        }
        if prepared.local.id_index is not None:
            participate["idIndex"] = prepared.local.id_index
        await send_to_shards(self.context, others, self.namespace.db, participate)

    async def _commit(self, pattern: ShardKeyPattern, prepared: Prepared) -> None:
        catalog = await self.context.catalog()
        epoch = ObjectId()
        timestamp = await catalog.new_timestamp()
        entry = CollectionEntry(
            namespace=self.namespace,
            uuid=prepared.uuid,
            epoch=epoch,
            timestamp=timestamp,
            lastmod=datetime.now(UTC).replace(tzinfo=None),
            key=pattern,
            unique=self._unique,
            default_collation=prepared.local.options.get("collation"),
            time_series=self._time_series,
        )
        first_version = ChunkVersion(1, 0, epoch, timestamp)
        chunks = make_initial_chunks(prepared.plan, uuid=prepared.uuid, first_version=first_version, new_id=ObjectId)
        await catalog.commit(
            {
                "_configsvrCommitCreateCollection": str(self.namespace),
                "collection": entry.to_document(),
                "chunks": [chunk.to_document() for chunk in chunks],
                **self.session,
            }
        )

    async def _end_earlier_commit(self) -> None:
        """Wait for the end of a commit from an earlier attempt or term, or prevent it if it has not arrived.

        The config servers may still insert chunks for a commit whose reply was lost. Allowing migrations waits for that
        commit's lock, and the newer transaction number prevents a later arrival. Otherwise it changes nothing, because
        migrations of a new collection are allowed.
        """
        await self.enter_phase(COMMIT)
        allow = {"_configsvrSetAllowMigrations": str(self.namespace), "allowMigrations": True, **self.session}
        try:
            await (await self.context.catalog()).commit(allow)
        except CommandError as error:
            if error.code != ErrorCode.NamespaceNotSharded:
                raise

    async def _publish(self, table: RoutingTable) -> None:
        """Make all shards with chunks, this one first, refresh and persist the committed routing table."""
        context, name = self.context, str(self.namespace)
        await context.refresher.refresh_collection(context.namespace(name))
        await context.writer.wait_collection_saved(name)
        others = set(table.shards) - {context.require_identity().shard_name}
        flush = {"_flushRoutingTableCacheUpdatesWithWriteConcern": name, "syncFromConfig": True}
        await send_to_shards(context, others, "admin", flush)
        await mark_sharded(context.mongod, table.collection)

    async def _log_end(self, table: RoutingTable, **more: object) -> None:
        details = {
            "uuid": Binary.from_uuid(table.collection.uuid),
            "version": str(table.collection_version),
            **more,
            "numChunks": table.chunk_count,
            "markedUntil": await self.context.mongod.operation_time(),
        }
        await log_change(self.context, "shardCollection.end", str(self.namespace), details)


def _version(table: RoutingTable) -> Mapping[str, Any]:
    return table.collection_version.to_document()


def _text(document: Mapping[str, Any]) -> str:
    return document_text(rawbson.encode_document(document))


async def buckets_to_shard(
    context: ShardContext, namespace: Namespace, arguments: Mapping[str, Any]
) -> tuple[Namespace, Mapping[str, Any]]:
    """Convert a request to shard a time-series collection to a request for its buckets and their key.

    Returns:
        The namespace and arguments, unchanged if the collection is neither a time-series collection nor to become one.

    Raises:
        CommandError: 5731500, it exists with other options; 6159000, the name of its buckets is taken; or an error of
            `TimeSeriesFields.buckets_key`.
    """
    if namespace.is_time_series_buckets:
        return namespace, arguments
    buckets, requested = namespace.buckets, arguments.get("timeseries")
    existing = await local_collections.describe(context.mongod, buckets)
    if existing is None and requested is None:
        return namespace, arguments
    options = requested
    if existing is not None:
        options = existing.options.get("timeseries")
        if options is None:
            raise CommandError(_NOT_TIME_SERIES, f"the collection '{buckets}' does not have 'timeseries' options")
        if requested is not None:
            present = TimeSeriesFields.from_document(options)
            if not TimeSeriesFields.from_document(requested).makes_buckets_like(present):
                raise CommandError(
                    _OTHER_OPTIONS,
                    f"the 'timeseries' spec provided must match that of exists '{namespace}' collection",
                )
            options = requested
    fields = TimeSeriesFields.from_document(options or {})
    key = fields.buckets_key(arguments["shardKey"])
    return buckets, {**arguments, "shardKey": key, "timeseries": fields.to_document()}
