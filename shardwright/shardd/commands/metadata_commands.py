"""Commands for routing metadata, and changes to chunks that move no documents.

These are ``getShardVersion``, ``getDatabaseVersion``, the flushes that refresh and persist metadata, ``splitChunk`` and
``mergeChunks``.
"""

from typing import Any

from bson.binary import Binary

from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.context.routing import refreshed_table
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import AFTER_SECTION
from shardwright.shardd.splitting.commit import commit_split
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import INT64, decode_document, index, raw_document
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
        while state.critical_section is not None:
            await state.critical_section.wait_released()
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
                f"{decode_document(pattern.document)}",
            )
