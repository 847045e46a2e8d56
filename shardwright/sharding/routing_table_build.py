"""Building the blocks of a routing table from all chunks of a collection."""

from array import array
from collections.abc import Iterable

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import CHUNKS_PER_BLOCK, BlockRow, ChunkBlock
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def blocks_of_all_chunks(pattern: ShardKeyPattern, chunks: Iterable[ChunkPlacement]) -> list[ChunkBlock]:
    """Sort the chunks of a collection, check that they tile the key space, and cut them into blocks.

    Columns rather than row objects hold them until then, so that building takes little more memory than the table.

    Raises:
        CommandError: ConflictingOperationInProgress, there is a gap or an overlap.
    """
    encode = pattern.key_bytes
    min_keys: list[bytes] = []
    mins: list[bytes] = []
    maxes: list[bytes] = []
    shards: list[str] = []
    versions = array("Q")
    valid_after = array("Q")
    older: dict[int, tuple[tuple[int, str], ...]] = {}
    shard_ids: dict[str, str] = {}
    for n, chunk in enumerate(chunks):
        min_keys.append(encode(chunk.min))
        mins.append(chunk.min)
        maxes.append(chunk.max)
        shards.append(shard_ids.setdefault(chunk.shard, chunk.shard))
        versions.append(chunk.version)
        newest, before = split_history(chunk.history)
        valid_after.append(newest)
        if before:
            older[n] = before
    order = sorted(range(len(min_keys)), key=min_keys.__getitem__)
    _check_tiling(pattern, order, min_keys, mins, maxes)
    del maxes
    return [
        ChunkBlock(
            BlockRow(min_keys[n], mins[n], shards[n], versions[n], valid_after[n], older.get(n, ()))
            for n in order[start : start + CHUNKS_PER_BLOCK]
        )
        for start in range(0, len(order), CHUNKS_PER_BLOCK)
    ]


def _check_tiling(
    pattern: ShardKeyPattern, order: list[int], min_keys: list[bytes], mins: list[bytes], maxes: list[bytes]
) -> None:
    encode = pattern.key_bytes
    if not order:
        raise _inconsistent("there are no chunks")
    if min_keys[order[0]] != pattern.global_min_bytes():
        raise _inconsistent(f"nothing lies before {document_text(mins[order[0]])}")
    previous = order[0]
    for n in order[1:]:
        # Bounds that touch are nearly always written with the same bytes, which saves encoding them.
        if maxes[previous] != mins[n] and (max_key := encode(maxes[previous])) != min_keys[n]:
            what = "gap" if max_key < min_keys[n] else "overlap"
            raise _inconsistent(f"{what} between {document_text(maxes[previous])} and {document_text(mins[n])}")
        if min_keys[previous] == min_keys[n]:
            raise _inconsistent(f"two chunks begin at {document_text(mins[n])}")
        previous = n
    if encode(maxes[previous]) != pattern.global_max_bytes():
        raise _inconsistent(f"nothing lies after {document_text(maxes[previous])}")


def split_history(history: tuple[tuple[int, str], ...]) -> tuple[int, tuple[tuple[int, str], ...]]:
    """When the newest entry began, and all older entries; a chunk without history has always been where it is."""
    return (history[0][0], history[1:]) if history else (0, ())


def _inconsistent(what: str) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"The chunks read from the catalog are not consistent: {what}"
    )
