"""``splitChunk`` and ``mergeChunks``: changes to this shard's chunks that move no documents."""

from typing import Any

from bson.binary import Binary

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.context.routing import refreshed_table
from shardwright.shardd.splitting.commit import commit_split
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import INT64, decode_document, index
from shardwright.wire.request import Request


@command("splitChunk", admin_only=True)
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


@command("mergeChunks", admin_only=True)
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
