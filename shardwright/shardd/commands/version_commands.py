"""``getShardVersion``, ``getDatabaseVersion``, and the flushes that refresh and persist metadata."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import AFTER_SECTION
from shardwright.sharding.arguments import full_namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.rawbson import decode_document, raw_document
from shardwright.wire.request import Request


@command("getShardVersion", admin_only=True, primary_only=False)
async def get_shard_version(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the known version of a collection, without a refresh."""
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


@command("getDatabaseVersion", admin_only=True, primary_only=False)
async def get_database_version(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the known version of a database, without a refresh."""
    entry = shard.context.database(Arguments.of(request).string(b"getDatabaseVersion")).entry
    return {"dbVersion": {} if entry is None else entry.version.to_document()}


@command("_flushRoutingTableCacheUpdates", admin_only=True)
async def flush_routing_table(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when a collection's metadata is persisted, after a refresh unless ``syncFromConfig: false``.

    If migrations are forbidden, or the collection is no longer sharded, none is under way when this returns.
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


@command("_flushRoutingTableCacheUpdatesWithWriteConcern", admin_only=True)
async def flush_routing_table_with_write_concern(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Like ``_flushRoutingTableCacheUpdates``, and wait until a majority of the set has the metadata."""
    reply = await flush_routing_table(shard, request)
    await shard.context.wait_majority()
    return reply


@command("_flushDatabaseCacheUpdates", primary_only=True)
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


@command("_flushDatabaseCacheUpdatesWithWriteConcern", primary_only=True)
async def flush_database_with_write_concern(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Like ``_flushDatabaseCacheUpdates``, and wait until a majority of the set has the metadata."""
    reply = await flush_database(shard, request)
    await shard.context.wait_majority()
    return reply
