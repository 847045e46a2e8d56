"""Which documents belong to the range that is received, and getting rid of some that an earlier attempt has brought."""

from typing import Final

from daemon.logs import get_logger
from shardd.migration.history.pooled_cursor import PooledCursor
from shardd.range_scan import ShardKeyIndex
from shardd.shard import Shard
from sharding.chunks import ChunkRange
from sharding.namespace import Namespace
from sharding.shard_key import ShardKeyPattern
from wire.rawbson import raw_document

logger = get_logger("shardd.migration.recipient")

_DELETED_AT_ONCE: Final = 1_000


class RangeMembership:
    """Tells the documents of a range from others.

    Attributes:
        projection: what of a document is needed to tell.
    """

    def __init__(self, pattern: ShardKeyPattern, wanted: ChunkRange) -> None:
        self._key_bytes_of = pattern.key_bytes_of_document
        self._range = wanted
        # A key of nothing but MaxKey belongs to the last chunk, though it is not below its bound.
        self.projection = {"_id": 1, **{each.path[0].decode(): 1 for each in pattern.fields}}
        self._greatest = pattern.global_max_bytes() if wanted.max_key == pattern.global_max_bytes() else None

    def has(self, document: bytes) -> bool:
        """Whether a raw document, of which only the shard key may be there, belongs to the range."""
        key = self._key_bytes_of(document)
        return self._range.contains_key(key) or key == self._greatest


async def delete_received(shard: Shard, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange) -> int:
    """Delete all documents of a range that this shard does not own, and never did; returns how many there were.

    Raises:
        CommandError: IndexNotFound, no index supports the shard key; or mongod refuses.
        BackendError: mongod does not answer.
    """
    index = await ShardKeyIndex.find(shard.mongod, namespace, pattern)
    deleted = 0
    async with shard.reserved_sessions.session() as session:
        for scan in index.scans(pattern, wanted):
            arguments = {**scan, "projection": {"_id": 1}, "batchSize": _DELETED_AT_ONCE}
            cursor = PooledCursor.find(shard.mongod, namespace, arguments)
            while found := await cursor.next_batch():
                for begin in range(0, len(found), _DELETED_AT_ONCE):
                    batch = found[begin : begin + _DELETED_AT_ONCE]
                    deleted += await session.delete(
                        namespace, [{"q": raw_document(each), "limit": 1} for each in batch]
                    )
    if deleted:
        logger.info("Deleted what a former attempt had received", namespace=str(namespace), documents=deleted)
    return deleted
