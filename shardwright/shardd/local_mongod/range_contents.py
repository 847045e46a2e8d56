"""Whether the local mongod has documents in a range of shard key values."""

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import ShardKeyIndex
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern


async def is_range_empty(
    mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> bool:
    """Whether no document has a shard key in a range, according to an index that supports the shard key.

    Raises:
        CommandError: IndexNotFound, there is no such index.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    for scan in index.scans(pattern, wanted):
        find = {"find": namespace.collection, **scan, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
        reply = await mongod.command(namespace.db, find)
        if reply["cursor"]["firstBatch"]:
            return False
    return True
