"""Commands for routing metadata, changes to chunks that move no documents, and checks of local data.

These are ``getShardVersion``, ``getDatabaseVersion``, the flushes that refresh and persist metadata, ``splitChunk`` and
``mergeChunks``, then ``cleanupOrphaned``, ``checkMetadataConsistency`` and the sizes for the balancer.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.commands.metadata_consistency import ExpectedCollection, LocalCheck, check_database
from shardwright.shardd.context.shard_context import refreshed_table
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import AFTER_SECTION
from shardwright.shardd.splitting.chunk_splitter import commit_split
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace, full_namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, INT64, decode_document, index, is_string, raw_document
from shardwright.wire.request import Request


async def get_shard_version(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the cached version of a collection, without a refresh."""
    state = shard.context.namespace(str(full_namespace(request)))
    reply: dict[str, Any] = {"configServer": shard.context.require_identity().config_string}
    wanted = state.wanted
    reply["global"] = "UNKNOWN" if wanted is None else wanted.lastmod
    if Arguments.of(request).boolean(b"fullMetadata", False):
        reply["metadata"] = _metadata(state)
    return reply


def _metadata(state: NamespaceState) -> dict[str, Any]:
    table = state.table
    if table is None:
        return {}
    collection, shard_version = table.collection_version, table.shard_version(state.shard)
    return {
        "collVersion": collection.lastmod,
        "collVersionEpoch": collection.epoch,
        "collVersionTimestamp": collection.timestamp,
        "shardVersion": shard_version.lastmod,
        "shardVersionEpoch": shard_version.epoch,
        "shardVersionTimestamp": shard_version.timestamp,
        "keyPattern": decode_document(table.key_pattern.document),
        "chunks": [[raw_document(chunk.min), raw_document(chunk.max)] for chunk in table.chunks_of_shard(state.shard)],
    }


async def get_database_version(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the cached version of a database, without a refresh."""
    entry = shard.context.database(Arguments.of(request).string(b"getDatabaseVersion")).entry
    return {"dbVersion": {} if entry is None else entry.version.to_document()}


async def flush_routing_table(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a collection's metadata is persisted, after a refresh unless ``syncFromConfig: false``.

    If migrations are forbidden, or the collection is no longer sharded, no migration is active when this returns.
    """
    state = shard.context.namespace(str(full_namespace(request)))
    if Arguments.of(request).boolean(AFTER_SECTION.encode(), False):
        await state.wait_section_over()
    if Arguments.of(request).boolean(b"syncFromConfig", True):
        await shard.context.refresher.reread_collection(state)
        if state.table is None or not state.table.collection.allow_migrations:
            await shard.migrations.abort_all(
                state.namespace, "Collection is undergoing changes so moveChunk is not allowed."
            )
    await shard.context.writer.wait_collection_saved(state.namespace)
    return {}


async def flush_routing_table_with_write_concern(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Run ``_flushRoutingTableCacheUpdates``, and wait until a majority of the set has the metadata."""
    reply = await flush_routing_table(shard, request)
    await shard.context.wait_majority()
    return reply


async def flush_database(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a database's metadata is persisted, after a refresh unless ``syncFromConfig: false``."""
    state = shard.context.database(Arguments.of(request).string(request.name.encode()))
    if Arguments.of(request).boolean(AFTER_SECTION.encode(), False):
        await state.wait_section_over()
    if Arguments.of(request).boolean(b"syncFromConfig", True):
        await shard.context.refresher.refresh_database(state)
    await shard.context.writer.wait_database_saved(state.name)
    return {}


async def flush_database_with_write_concern(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Run ``_flushDatabaseCacheUpdates``, and wait until a majority of the set has the metadata."""
    reply = await flush_database(shard, request)
    await shard.context.wait_majority()
    return reply


async def split_chunk(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Split a chunk of this shard at given keys, unless that has been done already.

    Raises:
        CommandError: InvalidOptions, a key is outside the chunk; IncompatibleShardingMetadata, no such chunk;
            StaleEpoch, another incarnation of the collection; CannotSplit, a split key of a hashed field is not a hash.
    """
    namespace = full_namespace(request)
    split_range = {"min": Arguments.of(request).raw(b"min"), "max": Arguments.of(request).raw(b"max")}
    points = request.documents(b"splitKeys")
    _check_hashed(ShardKeyPattern.from_bson(Arguments.of(request).raw(b"keyPattern")), points)
    async with shard.context.ddl_locks.chunk_change(str(namespace)):
        await commit_split(
            shard.context,
            str(namespace),
            (split_range["min"], split_range["max"]),
            points,
            shard=Arguments.of(request).required_value(b"from"),
            epoch=Arguments.of(request).required_value(b"epoch"),
            timestamp=request.get(b"timestamp"),
        )
    return {}


async def wait_for_ongoing_chunk_splits(shard: ShardComponents, _request: Request) -> dict[str, Any]:
    """Return when every chunk that has grown so far has been split. A test command."""
    await shard.auto_splitter.wait_idle()
    return {}


async def merge_chunks(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Merge all chunks in a range that this shard owns into one, unless that has been done already.

    Raises:
        CommandError: StaleConfig, another incarnation of the collection; IllegalOperation, the range does not consist
            of whole chunks of this shard.
    """
    namespace = full_namespace(request)
    bounds = request.documents(b"bounds")
    if len(bounds) != 2:
        raise CommandError(ErrorCode.BadValue, "mergeChunks needs a lower and an upper bound")
    async with shard.context.ddl_locks.chunk_change(str(namespace)):
        table = await refreshed_table(shard.context, namespace, Arguments.of(request).required_value(b"epoch"))
        merged = ChunkRange.of(table.key_pattern, bounds[0], bounds[1])
        first = table.chunk_for_key(merged.min_key)
        if first.min_key == merged.min_key and first.max_key == merged.max_key:
            return {}
        catalog = await shard.context.catalog()
        await catalog.commit(
            {
                "_configsvrCommitChunksMerge": str(namespace),
                "shard": shard.context.require_identity().shard_name,
                "collUUID": {"uuid": Binary.from_uuid(table.collection.uuid)},
                "chunkRange": merged.to_document(),
                "validAfter": await shard.context.placement_time(),
                "epoch": table.collection.epoch,
                "timestamp": table.collection.timestamp,
            }
        )
        await shard.context.refresher.reread_collection(shard.context.namespace(str(namespace)))
    return {}


def _check_hashed(pattern: ShardKeyPattern, points: list[bytes]) -> None:
    hashed = pattern.hashed_field
    for point in points if hashed is not None else ():
        assert hashed is not None
        span = index(point).get(hashed.name)
        if span is None or span[0] != INT64:
            raise CommandError(
                ErrorCode.CannotSplit,
                f"The split point {document_text(point)} must be of type NumberLong for the hashed shard key "
                f"{document_text(pattern.document)}",
            )


async def cleanup_orphaned(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when all ranges of a collection that this shard gave away, or failed to receive, are deleted.

    As in MongoDB since 4.4, this only waits for the range deleter, and never returns a key at which it stopped.

    Raises:
        CommandError: OrphanedRangeCleanUpFailed, ``startingFromKey`` is not a shard key; or the deletion of a range has
            failed in this term.
    """
    namespace = str(full_namespace(request))
    start = request.raw_object(b"startingFromKey") or EMPTY_DOCUMENT
    table = await shard.context.refresher.current_table(shard.context.namespace(namespace))
    if table is None:  # not sharded
        return {}
    pattern = table.key_pattern
    if start != EMPTY_DOCUMENT and pattern.normalize(start) is None:
        raise CommandError(
            ErrorCode.OrphanedRangeCleanUpFailed,
            f"could not cleanup orphaned data, start key {document_text(start)} does not match shard key pattern "
            f"{pattern}",
        )
    await shard.range_deletions.known.wait_all_deleted(namespace)
    return {}


async def check_metadata_consistency(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare the catalog's entries of a database, or one collection of it, with each other and with all shards."""
    indexes = Arguments.of(request).boolean(b"checkIndexes", False)
    found = await check_database(shard.context, request.db, _collection(request), indexes=indexes)
    return {"inconsistencies": found}


async def check_metadata_consistency_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare this shard's collections with the catalog."""
    primary_shard = Arguments.of(request).string(b"primaryShardId")
    documents: list[dict[str, Any]] = [decode_document(each) for each in request.documents(b"collections")]
    check = LocalCheck(shard.context, request.db)
    await check.run([ExpectedCollection.from_document(each) for each in documents], _collection(request), primary_shard)
    return {"inconsistencies": check.found, "indexes": check.indexes, "options": check.options}


def _collection(request: Request) -> str:
    """Return the name of the only collection to check; empty for all."""
    value = request.get(request.name.encode())
    return value if is_string(value) else ""


_RANGE_DELETIONS: Final = "rangeDeletions"


async def get_stats_for_balancing(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the size of collections in bytes, divided by ``scaleFactor``, without their orphans.

    A collection that does not exist here, or has another UUID, has size 0.
    """
    scale = int(request.get(b"scaleFactor", 1)) or 1
    asked = [decode_document(document) for document in request.documents(b"collections")]
    uuids = [required_uuid(each, "UUID") for each in asked]
    orphans = await _orphans(shard, uuids)
    stats = []
    for each, uuid in zip(asked, uuids, strict=True):
        namespace = Namespace.parse_collection(required(each, "ns", str))
        size = await _size(shard, namespace, uuid, orphans.get(uuid, 0))
        stats.append({"namespace": str(namespace), "collSize": Int64(size // scale)})
    return {"stats": stats}


async def _orphans(shard: ShardComponents, uuids: Iterable[UUID]) -> Mapping[UUID, int]:
    """Return the number of documents in pending range deletions, by collection."""
    pipeline = [
        {"$match": {"collectionUuid": {"$in": [Binary.from_uuid(uuid) for uuid in uuids]}}},
        {"$group": {"_id": "$collectionUuid", "orphans": {"$sum": "$numOrphanDocs"}}},
    ]
    reply = await shard.context.mongod.command(
        "config", {"aggregate": _RANGE_DELETIONS, "pipeline": pipeline, "cursor": {}}
    )
    return {required_uuid(each, "_id"): int(each["orphans"]) for each in reply["cursor"]["firstBatch"]}


async def _size(shard: ShardComponents, namespace: Namespace, uuid: UUID, orphans: int) -> int:
    local = await local_collections.describe(shard.context.mongod, namespace)
    if local is None or local.uuid != uuid:
        return 0
    try:
        stats = await shard.context.mongod.command(namespace.db, {"collStats": namespace.collection})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:  # dropped in between
            raise
        return 0
    return max(0, int(stats["size"]) - orphans * int(stats.get("avgObjSize", 0)))
