"""``splitChunk`` and ``mergeChunks``: changes to this shard's chunks that move no documents."""

from itertools import pairwise
from typing import Any

from bson.binary import Binary

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.context.routing import refreshed_table
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import INT64, decode_document, index, raw_document
from shardwright.wire.request import Request


@command("splitChunk", admin_only=True)
async def split_chunk(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Split a chunk of this shard at given keys, unless that has been done already.

    Raises:
        CommandError: InvalidOptions, a key is outside the chunk; IncompatibleShardingMetadata, no such chunk;
            StaleEpoch, another incarnation of the collection; CannotSplit, a split key of a hashed field is no hash.
    """
    namespace = full_namespace(request)
    split_range = {"min": Arguments.of(request).raw(b"min"), "max": Arguments.of(request).raw(b"max")}
    points = request.documents(b"splitKeys")
    _check_hashed(ShardKeyPattern.from_bson(Arguments.of(request).raw(b"keyPattern")), points)
    commit = {
        "_configsvrCommitChunkSplit": str(namespace),
        "collEpoch": Arguments.of(request).required_value(b"epoch"),
        "min": raw_document(split_range["min"]),
        "max": raw_document(split_range["max"]),
        "splitPoints": [raw_document(point) for point in points],
        "shard": Arguments.of(request).required_value(b"from"),
    }
    if b"timestamp" in request.fields:
        commit["collTimestamp"] = request.get(b"timestamp")
    async with shard.context.ddl_locks.chunk_change(str(namespace)):
        state = shard.context.namespace(str(namespace))
        catalog = await shard.context.catalog()
        try:
            await catalog.commit(commit)
        except CommandError:
            # A repeated request finds its chunk already split: what counts is whether the chunks exist.
            await shard.context.refresher.reread_collection(state)
            if not _is_split(state, split_range["min"], split_range["max"], points):
                raise
        else:
            await shard.context.refresher.reread_collection(state)
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


def _is_split(state: NamespaceState, low: bytes, high: bytes, points: list[bytes]) -> bool:
    """Whether there is exactly one chunk between each two neighbours of ``low``, the split points and ``high``."""
    table = state.table
    if table is None:
        return False
    encode = table.key_pattern.key_bytes
    keys = [encode(bound) for bound in (low, *points, high)]
    for key, next_key in pairwise(keys):
        if key >= next_key:
            return False
        chunk = table.chunk_for_key(key)
        if (chunk.min_key, chunk.max_key) != (key, next_key):
            return False
    return True
