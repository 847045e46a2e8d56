"""``_configsvrCommitChunkMigration``: assign a range to the shard that has received its documents."""

from typing import Any

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.ranges import parse_range
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.arguments import chunk_version
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_changes import Migration, move
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrCommitChunkMigration")
async def commit_chunk_migration(operation: Operation) -> dict[str, Any]:
    """Change the owner of a range, a whole chunk or part of one; a migration already committed is confirmed.

    Raises:
        CommandError: StaleEpoch; ConflictingOperationInProgress, the collection is gone, does not allow migrations, or
            the chunk has changed since the donor read it; ShardNotFound; 40165, no chunk contains the range; 4914702,
            it is on neither shard; IncompatibleShardingMetadata.
    """
    namespace = str(operation.namespace)
    arguments = operation.arguments
    from_shard, to_shard = arguments.string(b"fromShard"), arguments.string(b"toShard")
    valid_after = arguments.timestamp(b"validAfter")
    donor_version = chunk_version(arguments, b"fromShardCollectionVersion")
    chunk = arguments.nested(b"migratedChunk")
    low, high, version = chunk.raw(b"min"), chunk.raw(b"max"), chunk_version(chunk, b"lastmod")
    window_seconds = await operation.primary.catalog.snapshot_window_seconds()

    async def work(transaction: Transaction) -> tuple[ChunkVersion, ChunkVersion]:
        await check_shard_exists(transaction, to_shard)
        collection = await find_collection(transaction, namespace)
        if collection is None:
            raise CommandError(ErrorCode.ConflictingOperationInProgress, "Collection does not exist")
        _check_collection(collection, donor_version, f"[{document_text(low)}, {document_text(high)})")
        chunks = CollectionChunks(transaction, collection)
        before = await chunks.version()
        migration = Migration(
            moved=parse_range(collection.key, low, high),
            version=version,
            from_shard=from_shard,
            to_shard=to_shard,
            valid_after=valid_after,
            history_from=Timestamp(max(valid_after.time - window_seconds, 0), 0),
        )
        current = await chunks.at(low)
        changes = move(
            migration,
            current,
            control=None if current is None else await chunks.control_chunk(current),
            pattern=collection.key,
            collection_version=before,
            new_id=ObjectId,
        )
        chunks.write(changes)
        return changes.collection_version(before), await chunks.shard_version_after(from_shard, changes)

    async with operation.primary.locks.hold(f"ns:{namespace}"):
        collection_version, shard_version = await operation.primary.catalog.transaction(work)
    return {"collectionVersion": collection_version.to_document(), "shardVersion": shard_version.to_document()}


def _check_collection(collection: CollectionEntry, donor_version: ChunkVersion, migrated: str) -> None:
    """Refuse the migration if the collection was recreated or does not allow migrations."""
    if collection.epoch != donor_version.epoch or collection.timestamp != donor_version.timestamp:
        raise CommandError(
            ErrorCode.StaleEpoch,
            f"The epoch of collection '{collection.namespace}' has changed since the migration began. The config"
            f" server's collection version epoch is now '{collection.epoch}', but the shard's is"
            f" {donor_version.epoch}'. Aborting migration commit for chunk ({migrated}).",
        )
    if not collection.may_migrate:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, "Collection is undergoing changes and chunks cannot be moved"
        )
