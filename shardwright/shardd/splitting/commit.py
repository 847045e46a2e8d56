"""Committing a split on the config servers, unless it has been made already."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document


async def commit_split(
    context: ShardContext,
    namespace: str,
    bounds: tuple[bytes, bytes],
    points: Sequence[bytes],
    *,
    shard: str,
    epoch: ObjectId,
    timestamp: Timestamp | None,
    is_automatic: bool = False,
) -> None:
    """Split a chunk of a shard, and refresh the collection's metadata.

    The caller holds the lock for changes of the collection's chunks.

    Args:
        points: the split points, in order.
        is_automatic: whether the chunk is split because it has grown.

    Raises:
        CommandError: the config servers refused, and the chunk is not split as requested; or they cannot be reached.
        BackendError: mongod does not answer.
    """
    low, high = bounds
    commit: dict[str, Any] = {
        "_configsvrCommitChunkSplit": namespace,
        "collEpoch": epoch,
        "min": raw_document(low),
        "max": raw_document(high),
        "splitPoints": [raw_document(point) for point in points],
        "shard": shard,
        **({"fromChunkSplitter": True} if is_automatic else {}),
    }
    if timestamp is not None:
        commit["collTimestamp"] = timestamp
    state = context.namespace(namespace)
    catalog = await context.catalog()
    try:
        await catalog.commit(commit)
    except CommandError:
        # A repeated request finds its chunk already split, so the resulting chunks decide.
        await context.refresher.reread_collection(state)
        if not _is_split(state, low, high, points):
            raise
    else:
        await context.refresher.reread_collection(state)


def _is_split(state: NamespaceState, low: bytes, high: bytes, points: Sequence[bytes]) -> bool:
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
