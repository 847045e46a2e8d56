"""The checks of a database or one collection: among shards, on each shard, and for orphans without a range deletion.

The primary shard of the database (``_shardsvrCheckMetadataConsistency``, `check_database`) excludes DDL operations of
the database. Chunks may move meanwhile, so differences that a move can cause are not reported.

Each shard (``_shardsvrCheckMetadataConsistencyParticipant``, `LocalCheck`) compares its collections with the catalog.
It also finds orphans without a range deletion: reads that are not pinned to a shard key do not filter them, and the
range deleter will not delete them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext, all_shard_ids, send_to_shards
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.shard_key_index import is_range_empty
from shardwright.shardd.orphans.range_deletion_tasks import RangeDeletionTask, merged, range_of
from shardwright.sharding.catalog.consistency import (
    Inconsistency,
    RangeCheck,
    index_differences,
    namespace_of,
    option_differences,
)
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.catalog.reads import CatalogIsOlderError, find_in_snapshot
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import is_temporary
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document
from shardwright.wire.transport.cursor import DecodedCursor

ATTEMPTS_MAX: Final = 10
"""Maximum number of searches of a collection whose chunks keep moving."""

_NOT_COMPARED: Final = frozenset({"system.profile"})
"""Collections that are local to each shard."""


async def orphans_without_task(context: ShardContext, namespace: Namespace, uuid: UUID) -> Sequence[ChunkRange]:
    """Return the ranges with such orphans, each between two owned ranges or range deletions.

    A migration registers its range before it writes the first document, and removes it only after the placement has
    changed. So if the placement is the same before and after the search, orphans outside all ranges registered before
    or after it do not belong to a migration.

    Raises:
        CommandError: ConflictingOperationInProgress, the placement kept changing; or it cannot be read.
    """
    name = str(namespace)
    for _ in range(ATTEMPTS_MAX):
        before = context.range_deletion_tasks.of(name)
        table = await _table(context, name, uuid)
        if table is None:
            return ()
        found = [
            part
            for part in unowned(table, context.require_identity().shard_name, before)
            if not await is_range_empty(context.mongod, namespace, table.key_pattern, part)
        ]
        after = await _table(context, name, uuid)
        if after is not None and after.collection_version == table.collection_version:
            tasks = _ranges_of(table, context.range_deletion_tasks.of(name))
            return [part for part in found if not any(part.overlaps(each) for each in tasks)]
    raise CommandError(ErrorCode.ConflictingOperationInProgress, f"the chunks of {name} kept moving")


def unowned(table: RoutingTable, shard: str, tasks: Iterable[RangeDeletionTask]) -> list[ChunkRange]:
    """Return the ranges that a shard neither owns nor has a range deletion for, sorted and merged."""
    pattern = table.key_pattern
    excluded = _ranges_of(table, tasks)
    excluded += [part for is_owned, part in table.ranges_by_ownership(shard) if is_owned]
    gaps = []
    low, low_key = pattern.global_min(), pattern.global_min_bytes()
    for each in merged(excluded):
        if low_key < each.min_key:
            gaps.append(ChunkRange(low, each.min, low_key, each.min_key))
        low, low_key = each.max, each.max_key
    if low_key < pattern.global_max_bytes():
        gaps.append(ChunkRange(low, pattern.global_max(), low_key, pattern.global_max_bytes()))
    return gaps


def _ranges_of(table: RoutingTable, tasks: Iterable[RangeDeletionTask]) -> list[ChunkRange]:
    """Return the ranges of this collection's tasks; others may belong to a former collection with its name."""
    return [range_of(task, table.key_pattern) for task in tasks if task.collection_uuid == table.collection.uuid]


async def _table(context: ShardContext, namespace: str, uuid: UUID) -> RoutingTable | None:
    """Return the routing table on the config servers; None if the collection is another one now."""
    table = await context.refresher.current_table(context.namespace(namespace))
    return table if table is not None and table.collection.uuid == uuid else None


@dataclass(frozen=True, slots=True)
class ExpectedCollection:
    """A sharded collection in the catalog.

    Attributes:
        owners: the shards that own chunks.
        has_routing_table: whether its chunks are undamaged.
    """

    namespace: Namespace
    uuid: UUID
    pattern: ShardKeyPattern
    owners: frozenset[str]
    has_routing_table: bool

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ExpectedCollection":
        """Read the document sent by the primary shard of the database."""
        return cls(
            Namespace.parse(document["ns"]),
            UUID(bytes=bytes(document["uuid"])),
            ShardKeyPattern.from_mapping(document["key"]),
            frozenset(document["owners"]),
            bool(document["hasRoutingTable"]),
        )


class _Local(NamedTuple):
    """A collection of the local mongod."""

    uuid: UUID
    options: Mapping[str, Any]


class LocalCheck:
    """A check of this shard's part of a database.

    Attributes:
        indexes: the indexes of the sharded collections with chunks on this shard, by namespace.
        options: the options of the same collections.
    """

    def __init__(self, context: ShardContext, db: str) -> None:
        self._context = context
        self._db = db
        self._me = context.require_identity().shard_name
        self.found: list[dict[str, Any]] = []
        self.indexes: dict[str, list[dict[str, Any]]] = {}
        self.options: dict[str, Mapping[str, Any]] = {}

    async def run(self, expected: Sequence[ExpectedCollection], collection: str, primary_shard: str) -> None:
        """Compare the local collections with the catalog.

        Args:
            expected: the sharded collections of the database, or the one to check.
            collection: the only collection to check; empty for all.
            primary_shard: the database's primary shard, which has its unsharded collections.
        """
        local = await self._local_collections(collection)
        for each in expected:
            await self._check_sharded(each, local.get(each.namespace.collection))
        for name in sorted(set(local) - {each.namespace.collection for each in expected} - _NOT_COMPARED):
            if is_temporary(Namespace(self._db, name)):  # no operation reshards a collection of the database now
                self.found.append(Inconsistency.StrayTemporaryCollection.document(f"{self._db}.{name}", shard=self._me))
            elif self._me != primary_shard:
                about = {"shard": self._me, "localUUID": Binary.from_uuid(local[name].uuid)}
                self.found.append(Inconsistency.MisplacedCollection.document(f"{self._db}.{name}", **about))

    async def _local_collections(self, collection: str) -> dict[str, _Local]:
        wanted: dict[str, Any] = {"type": "collection", **({"name": collection} if collection else {})}
        listing = {"listCollections": 1, "filter": wanted}
        entries = await DecodedCursor(self._context.mongod.command, self._db, listing).all_documents()
        return {entry["name"]: _Local(UUID(bytes=bytes(entry["info"]["uuid"])), entry["options"]) for entry in entries}

    async def _check_sharded(self, expected: ExpectedCollection, local: _Local | None) -> None:
        if local is None:
            if self._me in expected.owners:
                self._report(Inconsistency.MissingLocalCollection, expected)
            return
        if local.uuid != expected.uuid:
            uuids = {"localUUID": Binary.from_uuid(local.uuid), "UUID": Binary.from_uuid(expected.uuid)}
            self.found.append(
                Inconsistency.CollectionUUIDMismatch.document(str(expected.namespace), shard=self._me, **uuids)
            )
            return
        indexes = await local_collections.list_indexes(self._context.mongod, expected.namespace)
        is_supported = any(expected.pattern.is_supported_by_index(index) for index in indexes)
        if self._me in expected.owners:
            self.indexes[str(expected.namespace)] = indexes
            self.options[str(expected.namespace)] = local.options
            if not is_supported:
                key = decode_document(expected.pattern.document)
                self._report(Inconsistency.MissingShardKeyIndex, expected, shardKeyPattern=key)
        if is_supported and expected.has_routing_table:
            await self._find_orphans(expected)

    async def _find_orphans(self, expected: ExpectedCollection) -> None:
        try:
            parts = await orphans_without_task(self._context, expected.namespace, expected.uuid)
        except CatalogIsOlderError as error:
            self._report(Inconsistency.ShardCatalogCacheCollectionMetadataMismatch, expected, reason=error.message)
            return
        for part in parts:
            self._report(Inconsistency.OrphanedDocuments, expected, range=part.to_document())

    def _report(self, kind: Inconsistency, expected: ExpectedCollection, **details: object) -> None:
        about = {"collectionUUID": Binary.from_uuid(expected.uuid), "shard": self._me}
        self.found.append(kind.document(str(expected.namespace), **about, **details))


@dataclass(frozen=True, slots=True)
class _Checked:
    """A sharded collection with its catalog entries and their check."""

    entry: CollectionEntry
    chunks: list[Mapping[str, Any]]
    has_routing_table: bool
    found: list[dict[str, Any]]

    @property
    def owners(self) -> frozenset[str]:
        """The shards that own chunks."""
        return frozenset(str(chunk["shard"]) for chunk in self.chunks if "shard" in chunk)

    def chunks_elsewhere(self, shards: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield an inconsistency for each chunk on an unknown shard."""
        about = {"collectionUUID": Binary.from_uuid(self.entry.uuid)}
        for chunk in self.chunks:
            if chunk.get("shard") not in shards:
                yield Inconsistency.ChunkOnUnknownShard.document(str(self.entry.namespace), **about, chunk=chunk)

    def for_participants(self) -> dict[str, Any]:
        """Return the fields that participants compare their local collections with."""
        entry = self.entry
        return {
            "ns": str(entry.namespace),
            "uuid": Binary.from_uuid(entry.uuid),
            "key": raw_document(entry.key.document),
            "owners": sorted(self.owners),
            "hasRoutingTable": self.has_routing_table,
        }


async def check_database(context: ShardContext, db: str, collection: str, *, indexes: bool) -> list[dict[str, Any]]:
    """Return the inconsistencies of a database, sorted by namespace.

    Args:
        context: the context of the database's primary shard, which is this one.
        collection: the only collection to check; empty for all.
        indexes: whether to compare the indexes of the shards that own chunks.

    Raises:
        CommandError: LockBusy, a DDL operation takes too long; or a shard or the config servers could not be reached.
    """
    async with context.ddl_locks.hold_all([db]):
        # A shard may be added during these reads, or removed once it has no chunks.
        before = await all_shard_ids(context)
        checked = [await _check_catalog(context, entry) for entry in await _sharded(context, db, collection)]
        participate: dict[str, Any] = {
            "_shardsvrCheckMetadataConsistencyParticipant": collection or 1,
            "primaryShardId": context.require_identity().shard_name,
            "collections": [each.for_participants() for each in checked],
        }
        shards = await all_shard_ids(context)
        replies = await send_to_shards(context, shards, db, participate)
    found = list(chain.from_iterable(each.found for each in checked))
    found += chain.from_iterable(each.chunks_elsewhere({*before, *shards}) for each in checked)
    found += chain.from_iterable(reply["inconsistencies"] for reply in replies.values())
    for each in checked:
        found += option_differences(each.entry, _of_shards("options", each, replies))
        if indexes:
            found += index_differences(str(each.entry.namespace), _of_shards("indexes", each, replies))
    return sorted(found, key=namespace_of)


async def _sharded(context: ShardContext, db: str, collection: str) -> list[CollectionEntry]:
    # The slash is the character after the dot, so it bounds all names with the prefix.
    names = f"{db}.{collection}" if collection else {"$gte": f"{db}.", "$lt": f"{db}/"}
    found = await (await context.catalog()).find("collections", {"_id": names}, sort={"_id": 1})
    decoded: list[dict[str, Any]] = [decode_document(document) for document in found]
    return [CollectionEntry.from_document(document) for document in decoded]


async def _check_catalog(context: ShardContext, entry: CollectionEntry) -> _Checked:
    catalog = await context.catalog()
    check = RangeCheck(str(entry.namespace), entry.uuid, entry.key)
    about, by_bound = {"uuid": Binary.from_uuid(entry.uuid)}, {"min": 1}
    raw_chunks = await catalog.read(find_in_snapshot("chunks", about, sort=by_bound))
    chunks: list[Mapping[str, Any]] = [decode_document(document) for document in raw_chunks]
    raw_zones = await catalog.find("tags", {"ns": str(entry.namespace)}, sort=by_bound)
    zones: list[Mapping[str, Any]] = [decode_document(document) for document in raw_zones]
    found = list(check.chunks(chunks))
    return _Checked(entry, chunks, not found, [*found, *check.zones(zones)])


def _of_shards(what: str, checked: _Checked, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the indexes or options that the owners of a collection replied, by shard."""
    name = str(checked.entry.namespace)
    return {shard: reply[what][name] for shard, reply in replies.items() if name in reply[what]}
